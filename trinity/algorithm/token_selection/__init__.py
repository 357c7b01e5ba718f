"""Token selections by the name of the policy loss that treats the selected tokens differently.

A selection considers all tokens of an update's rows together. Every rank computes the same
selection once per update, with the current policy and before the rows are split into micro-batches,
so it does not depend on the split. The loss reads it from `PolicyInputs.chosen_BT`.
"""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.algorithm.token_selection.selection_batch import TokenSelectionFn

TOKEN_SELECTIONS: "Registry[TokenSelectionFn]" = Registry(
    "token choice",
    {
        name: f"trinity.algorithm.token_selection.{name}.select_{name}"
        for name in ("clip_cov", "kl_cov", "kto", "m2po")
    },
)
