"""Which stage of which run another one trains on, as the synchronizer knows them."""

from pathlib import Path

import pytest

from tests.integration.inspect.test_source_runs import taking
from tests.integration.synchronizer.builders import creation
from tests.integration.synchronizer.conftest import TIMEOUT, Running
from tests.support.model_free.experiment import experiment_plan
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.parts import StoredRollouts
from trinity.run.launch.stored_runs import find_experiment, with_source_runs


async def taken(synchronizer: Running, root: Path, source_stage: str = "") -> StoredRollouts:
    plan = await with_source_runs(synchronizer.stub, taking(root, source_stage=source_stage))
    [stage] = plan.stages
    assert stage.stored_rollouts is not None
    return stage.stored_rollouts


@pytest.mark.parametrize("mode", ["bench", "serve"])
async def test_the_last_stage_that_explored_is_taken_from(
    synchronizer: Running, tmp_path: Path, mode: str
) -> None:
    """Not one after it that only measures, or serves."""
    source = experiment_plan(tmp_path)
    [explored] = source.stages
    later = explored.model_copy(update={"index": 1, "name": "later", "mode": mode})
    plan = source.model_copy(update={"stages": (explored, later)})
    created = await synchronizer.created(creation(plan.model_dump_json(), plan.label))
    found = await taken(synchronizer, tmp_path)
    assert (found.experiment_id, found.stage) == (created.experiment.id, "rft")


async def test_a_run_is_found_however_many_came_after_it(synchronizer: Running) -> None:
    oldest = await synchronizer.created(creation(label="project/oldest"))
    for number in range(101):
        await synchronizer.created(creation(label=f"project/{number}"))
    listed = await synchronizer.stub.GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT)
    assert oldest.experiment.id not in {one.id for one in listed.experiments}
    found = await find_experiment(synchronizer.stub, "default", "project/oldest")
    assert found is not None and found.id == oldest.experiment.id
    assert await find_experiment(synchronizer.stub, "other", "project/oldest") is None
    assert await find_experiment(synchronizer.stub, "default", "project/never") is None
