"""The stack without a model behaves as the one with a model does."""

from pathlib import Path

from tests.support.model_free.alone import weights_of
from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.shared_stack import ON_IT, SharedStack

pytestmark = ON_IT


async def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    tmp_path: Path, shared_stack: SharedStack, calm_weights: str
) -> None:
    plans = [experiment_plan(tmp_path, name=f"seed-{seed}", seed=seed) for seed in (7, 8)]
    again, other = [weights_of(await run_to_end(shared_stack.synchronizer, plan)) for plan in plans]
    assert again == calm_weights
    assert other != calm_weights
