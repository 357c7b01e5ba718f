"""The database is lost and comes back from a backup, older than all else; no model."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deployed.backed_up import JOBS, Node, backed_up_node
from tests.support.model_free.alone import weights_of
from tests.support.model_free.experiment import (
    experiment_plan,
    run_to_end,
    start_experiment,
    wait_until_ended,
)
from tests.support.model_free.stack import MODULES
from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.runtime.rpc.channel import open_channel
from trinity.weights.manifest import MANIFEST_NAME, Manifest, describe

pytestmark = pytest.mark.timeout(900)
STEPS = 12


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A deployment whose trainer and explorer have no model, and work on throughout."""
    with backed_up_node(tmp_path, MODULES) as node:
        variables = node.by_hand.compose["services"]["buffer"]["environment"]
        variables["TRINITY_BUFFER_TASKSET_ROOTS"] = str(tmp_path)
        node.start()
        with node.by_hand.service("trainer"), node.by_hand.service("explorer"):
            yield node


def planned(root: Path, name: str, steps: int) -> ExperimentPlan:
    plan = experiment_plan(root, name=name, buffer={"total_steps": steps})
    plan.job_path.mkdir(parents=True, exist_ok=True)
    return plan


async def trained_to(node: Node, run: pb.Experiment, step: int) -> int:
    """The newest step, once it is this one or a later one."""
    async with open_channel(node.by_hand.address("buffer")) as channel:
        stub: buffer_pb2_grpc.BufferServiceStub = buffer_pb2_grpc.BufferServiceStub(channel)
        request = buffer_pb2.WatchProgressRequest(tenant=run.tenant, experiment_id=run.id)
        newest: int = 0
        async for answer in stub.WatchProgress(request):
            newest = max(newest, *(int(event.step.step) for event in answer.events), 0)
            if newest >= step:
                return newest
    raise AssertionError("no answer")


def is_whole(folder: Path) -> bool:
    manifest = Manifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
    return all(
        describe(folder / name, file.hash_name) == file for name, file in manifest.files.items()
    )


async def test_runs_go_on_from_a_database_that_is_older_than_they_are(
    node: Node, tmp_path: Path, calm_weights: str
) -> None:
    """One is backed up while it trains; of two that had ended, files are gone."""
    calm = await run_to_end(node.synchronizer, planned(tmp_path, "calm", STEPS))
    short = [planned(tmp_path, name, 3) for name in ("without-checkpoint", "without-contents")]
    ended = [await run_to_end(node.synchronizer, plan) for plan in short]
    plan = planned(tmp_path, "busy", STEPS)
    run = await start_experiment(node.synchronizer, plan)
    await trained_to(node, run, 1)
    await asyncio.to_thread(node.job, "backup")
    newest = await trained_to(node, run, min(await trained_to(node, run, 1) + 3, STEPS))
    longer = await run_to_end(node.synchronizer, planned(tmp_path, "without-checkpoint", 5))
    node.lose_database()

    stage = plan.job_path / "stages" / "rft"
    future = {path.name for path in stage.glob("*/*-1")}
    node.job("accounts", "restore")
    of_run = f"experiment_id = '{run.id}'"
    [known] = node.query(f"SELECT recorded_step FROM buffer.stage WHERE {of_run}")
    assert isinstance(known, int)
    assert known < newest, "the database is behind"
    for before in short:
        shutil.rmtree(before.job_path / "stages" / "rft" / "checkpoints")
    node.query(
        f"UPDATE buffer.segment SET retired_at = now() WHERE experiment_id = '{ended[1].id}'"
    )
    node.job(*JOBS)
    node.start()

    assert weights_of(await wait_until_ended(node.synchronizer, run.id)) == weights_of(calm)
    aside = {path.name: path for path in stage.glob("set-aside/*/*")}
    lost = {name for name in future if int(name.split("-")[-2].strip("v")) > known}
    assert lost
    assert lost <= aside.keys()
    assert all(map(is_whole, aside.values()))
    assert longer.id == ended[0].id
    again = await run_to_end(node.synchronizer, planned(tmp_path, "without-checkpoint", 8))
    assert weights_of(again) == calm_weights
    failed = await run_to_end(node.synchronizer, planned(tmp_path, "without-contents", 8))
    assert failed.state == pb.EXPERIMENT_STATE_FAILED
    assert "the contents of 8 samples of stage rft are gone" in failed.reason
    assert "no checkpoint can be read (of 1 on record, the newest is" in failed.reason
