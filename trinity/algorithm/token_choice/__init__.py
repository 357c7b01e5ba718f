"""Which tokens a policy loss treats apart, by the loss's name.

Such a choice looks at all tokens of a batch together, so it is made once for the whole batch of a
train step, on every rank alike, before the batch is cut into micro-batches: how it is cut changes
nothing. The loss then finds its tokens in `PolicyInputs.chosen_BT`.
"""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.algorithm.token_choice.choice_batch import TokenChoiceFn

TOKEN_CHOICES: "Registry[TokenChoiceFn]" = Registry(
    "token choice",
    {
        name: f"trinity.algorithm.token_choice.{name}.choose_{name}"
        for name in ("clip_cov", "kl_cov")
    },
)
