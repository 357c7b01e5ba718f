"""The stack without a model behaves as the one with a model does."""

from pathlib import Path

from tests.model_free.experiment import experiment_plan, final_weights, run_to_end
from tests.model_free.stack import model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb


async def weights_of(root: Path, seed: int) -> str:
    plan = experiment_plan(root, seed=seed)
    async with model_free_stack(plan.job_path) as stack:
        ended = await run_to_end(stack.addresses.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    return final_weights(ended)


async def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    tmp_path: Path,
) -> None:
    first = await weights_of(tmp_path / "first", seed=1)
    again = await weights_of(tmp_path / "again", seed=1)
    other = await weights_of(tmp_path / "other", seed=2)
    assert first == again != other
