"""What a run ends with when nobody else is there and nothing happens to it."""

import asyncio
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.model_free.experiment import experiment_plan, final_weights, run_to_end
from tests.model_free.stack import model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb


@cache
def weights_alone(seed: int) -> str:
    """Hash of the final weights of the plan that `experiment_plan` makes with that seed."""
    with TemporaryDirectory() as root:
        return asyncio.run(_run(Path(root), seed))


async def _run(root: Path, seed: int) -> str:
    plan = experiment_plan(root, seed=seed)
    async with model_free_stack(plan.job_path) as stack:
        return weights_of(await run_to_end(stack.addresses.synchronizer, plan))


def weights_of(ended: pb.Experiment) -> str:
    """The final weights of an experiment that has ended well."""
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    return final_weights(ended)
