"""The trainer service begins a run with a former one's checkpoint, however often its rank dies."""

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples.addition.model import save_model
from tests.integration.trainer.learners import stepped
from tests.integration.trainer.peers import Peers, serve_peers
from tests.integration.trainer.service import (
    Disturb,
    peers_of,
    plan_in,
    running_service,
)
from tests.support.ranks import ranks_of
from tests.unit.trainer.builders import random_batch
from trinity.api.v1 import synchronizer_pb2
from trinity.config.plan.stage_plan import ExperimentPlan

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks

pytestmark = pytest.mark.timeout(900)

SECONDS = 300.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("addition")
    save_model(directory, seed=0)
    return directory


@pytest.fixture
def former(model: Path, ranks: "Ranks", tmp_path: Path) -> tuple[Path, bytes]:
    """A checkpoint after two steps, and the hash of its weights."""
    from services.trainer.checkpoints.checkpoints import CheckpointStore
    from services.trainer.checkpoints.weights import weights_hash
    from services.trainer.learner.learner import Learner

    (tmp_path / "former").mkdir()
    plan = plan_in(tmp_path / "former", model).stages[0]
    learner = Learner(plan=plan, model_directory=model, ranks=ranks)
    for step in (1, 2):
        stepped(learner, random_batch(8, seed=step, step=step))
    store = CheckpointStore(root=tmp_path / "checkpoints", stage="sft", ranks=ranks)
    written = store.write(learner, step=2, incarnation=1)
    return written.path, weights_hash(dict(learner.weights()))


def plan_of(directory: Path, model: Path, path: Path) -> ExperimentPlan:
    directory.mkdir()
    start: dict[str, Any] = {
        "resume_mode": "resume_path",
        "resume_from_path": str(path),
        "save_interval": 0,
    }
    return plan_in(directory, model, **start)


def unmoving(plan: ExperimentPlan) -> ExperimentPlan:
    """The same at a rate that no weight in single precision feels."""
    first, *others = plan.stages
    schedule = first.lr_schedule.model_copy(update={"lr": 1e-30})
    return plan.model_copy(
        update={"stages": (first.model_copy(update={"lr_schedule": schedule}), *others)}
    )


async def first_stage(plan: ExperimentPlan, disturb: Disturb | None = None) -> bytes:
    """Hash of its final weights; the stages after it are not waited for."""
    peers = peers_of(plan)
    done = synchronizer_pb2.STAGE_STATE_FINISHED
    async with serve_peers(peers) as address, running_service(address) as (process, _):
        if disturb is not None:
            await disturb(peers, process)
        await peers.until(lambda: peers.experiment.stages[0].state == done or bool(peers.failure))
        assert peers.failure == ""
    return peers.experiment.stages[0].final_version.weights_blake3


async def kill_the_rank_before_its_first_checkpoint(
    peers: Peers, process: asyncio.subprocess.Process
) -> None:
    stage = peers.stages["sft"]
    await peers.until(lambda: stage.recorded_step >= 2, SECONDS)
    for rank in ranks_of(process.pid):
        rank.send_signal(signal.SIGKILL)


@pytest.mark.thorough
async def test_the_weights_that_a_run_begins_with_are_the_former_ones(
    tmp_path: Path, model: Path, former: tuple[Path, bytes]
) -> None:
    path, weights = former
    assert await first_stage(unmoving(plan_of(tmp_path / "run", model, path))) == weights


@pytest.mark.thorough
async def test_a_rank_that_dies_begins_with_them_again(
    tmp_path: Path, model: Path, former: tuple[Path, bytes]
) -> None:
    path, weights = former
    calm = await first_stage(plan_of(tmp_path / "calm", model, path))
    rough = await first_stage(
        plan_of(tmp_path / "rough", model, path), kill_the_rank_before_its_first_checkpoint
    )
    assert rough == calm != weights


async def test_a_damaged_checkpoint_fails_the_run_with_one_sentence(
    tmp_path: Path, model: Path, former: tuple[Path, bytes]
) -> None:
    path, _ = former
    plan = plan_of(tmp_path / "run", model, path)
    file = path / "shards" / "0-0.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    peers = peers_of(plan)
    async with serve_peers(peers) as address, running_service(address):
        await peers.until(lambda: bool(peers.failure), SECONDS)
    assert "`trainer.resume_from_path` names a checkpoint that is damaged" in peers.failure
    assert file.name in peers.failure
    assert "\n" not in peers.failure
