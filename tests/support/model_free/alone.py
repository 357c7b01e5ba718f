"""What a run ends with when nobody else is there and nothing happens to it."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.forking.starts import real_starts
from tests.support.model_free.experiment import experiment_plan, final_weights, run_to_end
from tests.support.model_free.stack import model_free_stack
from tests.support.shared import made_once, shared_folder
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.stage_plan import ExperimentPlan


@pytest.fixture(scope="session")
def calm_weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Hash of the final weights of the plan that `experiment_plan` makes, undisturbed.

    Made once for all workers, by processes of its own: they are started, not forked.
    """

    def make() -> str:
        with TemporaryDirectory() as root:
            return asyncio.run(_run(Path(root)))

    return made_once(shared_folder(tmp_path_factory, "model-free") / "weights", make)


async def _run(root: Path) -> str:
    plan = experiment_plan(root)
    with real_starts():
        return await _run_on_own_stack(plan)


async def _run_on_own_stack(plan: ExperimentPlan) -> str:
    async with model_free_stack(plan.job_path) as stack:
        return weights_of(await run_to_end(stack.addresses.synchronizer, plan))


def weights_of(ended: pb.Experiment) -> str:
    """The final weights of an experiment that has ended well."""
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    return final_weights(ended)
