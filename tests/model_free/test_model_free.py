"""The stack without a model behaves as the one with a model does."""

from pathlib import Path

from tests.model_free.alone import weights_of
from tests.model_free.experiment import experiment_plan, run_to_end
from tests.model_free.stack import model_free_stack


async def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    tmp_path: Path, calm_weights: str
) -> None:
    plans = [experiment_plan(tmp_path, name=f"seed-{seed}", seed=seed) for seed in (7, 8)]
    async with model_free_stack(tmp_path / "stack") as stack:
        at = stack.addresses.synchronizer
        again, other = [weights_of(await run_to_end(at, plan)) for plan in plans]
    assert again == calm_weights
    assert other != calm_weights
