"""Old contents of a stage are removed whatever is wrong with another stage."""

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from services.buffer.maintenance import retain_once
from services.buffer.operations.retention import BatchedSegmentCache
from services.buffer.store.segments import stages_with_old_segments
from services.buffer.store.stages import lock_stage
from tests.integration.buffer.harness import talk_to
from tests.integration.buffer.impatient import impatient_database
from tests.integration.buffer.plans import ROWS, rollout_plan
from tests.integration.buffer.process import BufferProcess
from tests.integration.buffer.test_retention import WANTED, begin, removed, train
from tests.integration.buffer.test_unreadable_plans import spoil
from trinity.types import StageKey

RETIRED = "SELECT count(*) FROM buffer.segment WHERE experiment_id = %s AND retired_at IS NOT NULL"
UNDO = "UPDATE buffer.segment SET retired_at = NULL, removed_at = NULL"
UNREMOVED = (
    "SELECT count(*) FROM buffer.segment WHERE retired_at IS NOT NULL AND removed_at IS NULL"
)


@pytest.fixture
def own_settings() -> dict[str, str]:
    """Each step's rows are a partition of their own."""
    return {"TRINITY_BUFFER_SEGMENT_MAX_ROWS": str(ROWS)}


async def two_with_old_contents(
    process: BufferProcess, tmp_path: Path, tenants: tuple[str, str] = ("one", "other")
) -> list[StageKey]:
    """Stages of two experiments, in the order in which they are looked at; nothing runs."""
    for tenant in tenants:
        async with talk_to(process) as buffer:
            buffer.key = replace(buffer.key, tenant=tenant)
            await begin(buffer, rollout_plan(tmp_path, keep_steps=0, **WANTED))
            for step in range(1, 5):
                await train(buffer, step)
            await removed(process, buffer, 1)
    process.kill()
    with psycopg.connect(process.dsn) as connection:  # as if nobody had looked yet
        connection.execute(UNDO)
    async with impatient_database(process.dsn) as database, database.autocommit() as connection:
        return await stages_with_old_segments(connection)


def num_retired(process: BufferProcess, key: StageKey) -> int:
    with psycopg.connect(process.dsn) as connection:
        row = connection.execute(RETIRED, [key.experiment_id]).fetchone()
    assert row is not None
    return int(row[0])


async def test_contents_go_while_another_stage_is_locked(
    own_process: BufferProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await two_with_old_contents(own_process, tmp_path)
    async with impatient_database(own_process.dsn) as database:
        async with database.transaction() as connection:
            await lock_stage(connection, first)
            await retain_once(database, BatchedSegmentCache())
        assert "old contents of a stage stay for now" in caplog.messages
        assert num_retired(own_process, first) == 0
        assert num_retired(own_process, second) > 0
        with psycopg.connect(own_process.dsn) as connection:
            left = connection.execute(UNREMOVED).fetchone()
        assert left == (0,)
        await retain_once(database, BatchedSegmentCache())
    assert num_retired(own_process, first) > 0


async def test_contents_go_whatever_plan_a_stage_of_another_tenant_has(
    own_process: BufferProcess, tmp_path: Path
) -> None:
    first, second = await two_with_old_contents(own_process, tmp_path)
    spoil(own_process.dsn, first)
    async with impatient_database(own_process.dsn) as database:
        await retain_once(database, BatchedSegmentCache())
    assert num_retired(own_process, first) == 0
    assert num_retired(own_process, second) > 0


async def test_contents_stay_that_an_open_stage_may_need_whose_plan_cannot_be_read(
    own_process: BufferProcess, tmp_path: Path
) -> None:
    """A stage may train the samples of another one of its tenant."""
    first, second = await two_with_old_contents(own_process, tmp_path, ("one", "one"))
    spoil(own_process.dsn, first)
    async with impatient_database(own_process.dsn) as database:
        await retain_once(database, BatchedSegmentCache())
    assert num_retired(own_process, second) == 0
