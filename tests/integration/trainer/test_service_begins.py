"""The trainer service begins a run with a former one's checkpoint, or says what is wrong."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples.addition.model import save_model
from tests.integration.trainer.learners import stepped
from tests.integration.trainer.peers import serve_peers
from tests.integration.trainer.service import (
    peers_of,
    plan_in,
    running_service,
)
from tests.unit.trainer.builders import random_batch
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
