"""Backups of a real database, and restores of it: whole, refused, cut off."""

from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.integration.synchronizer.builders import finished, publication, weights
from tests.support.deployed.backed_up import JOBS, Node, backed_up_node
from tests.support.model_free.experiment import experiment_plan, start_experiment
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.errors import Superseded
from trinity.run.deploy.backup import stored_backups
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.errors import answer_of

pytestmark = pytest.mark.timeout(300)
TABLES = "SELECT count(*) FROM pg_tables WHERE schemaname IN ('buffer', 'synchronizer')"
LIFE = "SELECT incarnation FROM buffer.stage"
PUBLISHED = weights("rft", 7, 3)
NO_COUNT = 1_700_000_000
"""More lives than any trainer has had, also those of which the backup does not know."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A database with one experiment, in its third life."""
    with backed_up_node(tmp_path) as node:
        node.start("synchronizer")
        run = await start_experiment(node.synchronizer, experiment_plan(tmp_path))
        async with open_channel(node.synchronizer) as channel:
            stub: SynchronizerServiceStub = SynchronizerServiceStub(channel)
            await answer_of(stub.PublishVersion(publication(run.id, PUBLISHED)))
        node.stores.close()
        node.query(
            "INSERT INTO buffer.stage "
            "(tenant, experiment_id, stage, plan, state, segment_id, incarnation, published) "
            f"VALUES ('default', '{run.id}', 'rft', '{{}}', 'open', 1, 3, 7)"
        )
        yield node


async def test_a_restored_database_is_as_it_was_but_for_the_fence(node: Node) -> None:
    node.job("backup")
    assert "its table synchronizer.experiment has rows" in node.refused("restore")
    assert node.query(LIFE) == [3]
    [run] = node.query("SELECT id FROM synchronizer.experiment")
    node.query("UPDATE buffer.stage SET incarnation = 9")
    node.lose_database()
    node.job("accounts", "restore", *JOBS)
    assert node.query("SELECT id, start_count FROM synchronizer.experiment") == [(run, 2)]
    [life] = node.query(LIFE)
    assert isinstance(life, int)
    assert life > NO_COUNT
    assert node.query("SELECT published FROM buffer.stage") == [None]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        node.query("SELECT 1 FROM buffer.stage", role="synchronizer")
    node.start("synchronizer")
    assert "stop the synchronizer until it is restored" in node.refused("restore")
    async with open_channel(node.synchronizer) as channel:
        stub: SynchronizerServiceStub = SynchronizerServiceStub(channel)
        with pytest.raises(Superseded, match="incarnation 9 must stop"):
            await answer_of(stub.PublishVersion(publication(str(run), weights("rft", 8, 9))))
        done = finished(str(run), "rft", pb.ROLE_TRAINER, PUBLISHED)
        await answer_of(stub.FinishRole(done))  # of a stage whose training had ended
        await answer_of(stub.PublishVersion(publication(str(run), weights("rft", 8, life + 1))))
    node.stores.close()
    variables = node.by_hand.compose["services"]["restore"]["environment"]
    variables["TRINITY_RESTORE_FENCE_ONLY"] = "true"
    node.job("restore")  # what a provider has taken back to another time
    [later] = node.query(LIFE)
    assert isinstance(later, int)
    assert later > life


async def test_backups_are_kept_by_number_and_read_by_a_role_that_only_reads(node: Node) -> None:
    variables = node.by_hand.compose["services"]["backup"]["environment"]
    variables["TRINITY_BACKUP_KEEP"] = "2"
    for _ in range(3):
        node.job("backup")
    assert list(stored_backups(node.backups)) == [2, 3]
    assert all(path.stat().st_mode & 0o077 == 0 for path in stored_backups(node.backups).values())
    assert node.query("SELECT count(*) FROM buffer.stage", role="backup") == [1]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        node.query("DELETE FROM buffer.stage", role="backup")
    variables["TRINITY_BACKUP_FOLDER"] = str(node.by_hand.folder)
    assert "was not made by Trinity" in node.refused("backup")


def is_restoring(pid: int) -> bool:
    """True once it has begun its transaction."""
    return any(child.name() == "psql" for child in psutil.Process(pid).children())


async def test_a_restore_that_is_cut_off_leaves_nothing(node: Node) -> None:
    """Neither a backup that is damaged nor a kill leaves a part of it, or the whole unfenced."""
    node.job("backup")
    [backup] = stored_backups(node.backups).values()
    whole = backup.read_bytes()
    node.lose_database()
    node.job("accounts")
    backup.write_bytes(whole[: len(whole) * 3 // 4])
    assert "was left as it was" in node.refused("restore")
    assert node.query(TABLES) == [0]
    backup.write_bytes(whole)
    for _ in range(3):
        with node.command("restore") as restoring:
            while restoring.poll() is None and not is_restoring(restoring.pid):
                pass
            restoring.kill()
        assert node.query(TABLES) == [0]
    node.job("restore")
    [life] = node.query(LIFE)
    assert isinstance(life, int)
    assert life > NO_COUNT
