"""The names under which losses are found, and what their sources promise."""

import inspect
import subprocess
import sys
from collections.abc import Callable

from tests.unit.algorithm.policy_loss.batches import random_inputs
from tests.unit.subtests import as_subtests
from trinity.algorithm.entropy import ENTROPY_LOSSES
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.policy_loss.inputs import PolicyLoss
from trinity.plugins import Registry

OF_THE_INVENTORY = {
    *("ppo", "gspo", "cispo", "sapo", "topr", "opmd", "sppo", "rec", "sft", "sft_is", "sft_phi"),
    *("importance_sampling", "dpo", "mix", "mix_chord"),
}
PARTS = [
    *((POLICY_LOSSES, name) for name in sorted(POLICY_LOSSES.builtins)),
    *((ENTROPY_LOSSES, name) for name in sorted(ENTROPY_LOSSES.builtins)),
]


def test_every_loss_of_the_inventory_has_its_name() -> None:
    assert set(POLICY_LOSSES.builtins) >= OF_THE_INVENTORY
    assert sorted(ENTROPY_LOSSES.builtins) == ["default", "mix", "none"]


@as_subtests(("registry", "name"), PARTS)
def test_each_is_in_the_file_of_its_name_with_defaults_for_all_arguments(
    registry: Registry[Callable[..., PolicyLoss]], name: str
) -> None:
    function = registry.get(name)
    first, *others = inspect.signature(function).parameters.values()
    assert function.__module__.rpartition(".")[2] == function.__name__ == name
    assert first.name == "inputs"
    for parameter in others:
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert isinstance(parameter.default, float | int | str | None)


@as_subtests("name", sorted(POLICY_LOSSES.builtins))
def test_each_gives_losses_and_figures_of_tokens_or_of_rows(name: str) -> None:
    inputs = random_inputs(1, with_experts=True)
    loss = POLICY_LOSSES.get(name)(inputs)
    assert (loss.loss_BT is None) != (loss.loss_B is None)
    assert loss.loss_BT is None or loss.loss_BT.shape == inputs.mask_BT.shape
    assert loss.loss_B is None or loss.loss_B.shape == inputs.mask_BT.shape[:1]
    for values in loss.metrics.values():
        assert values.shape in (inputs.mask_BT.shape, inputs.mask_BT.shape[:1])


def test_asking_for_names_does_not_import_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from trinity.algorithm.entropy import ENTROPY_LOSSES\n"
        "from trinity.algorithm.policy_loss import POLICY_LOSSES\n"
        "assert POLICY_LOSSES.names() and ENTROPY_LOSSES.names()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
