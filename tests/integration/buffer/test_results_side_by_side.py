"""Results of different groups are stored side by side, those of one group one after the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg

from services.buffer.ingest.wire import decode_batch
from services.buffer.operations.results import ResultWriter
from services.buffer.store.runs import load_commit_context
from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.impatient import impatient_database
from tests.integration.buffer.plans import ROWS, rollout_plan
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import experience_pb2

Report = pb.CommitReport
WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
LOOK_SECONDS = 0.01
MANY = 10_000


async def leased(
    buffer: Buffer, tmp_path: Path, train_batch_size: int = ROWS
) -> list[pb.Assignment]:
    """The first explore step's assignments."""
    await buffer.open(rollout_plan(tmp_path, train_batch_size=train_batch_size))
    await buffer.begin()
    await buffer.record(0)
    return list((await buffer.lease()).assignments)


@asynccontextmanager
async def on_its_way(
    buffer: Buffer, dsn: str, *results: experience_pb2.RunResult
) -> AsyncIterator[None]:
    """Another replica is about to store these results, and does so at the end of the block."""
    told = decode_batch(buffer.subject, buffer.batch_of(results)).results
    async with impatient_database(dsn) as database, database.transaction() as connection:
        assert await load_commit_context(connection, buffer.key, told, [], is_alone=False)
        yield
        await ResultWriter(MANY, MANY * MANY).write_results(connection, told, is_alone=False)


async def until_waiting(dsn: str, number: int) -> None:
    """Return when so many transactions wait for others."""
    connecting = psycopg.AsyncConnection.connect(dsn, autocommit=True)
    async with asyncio.timeout(CALL_SECONDS), await connecting as connection:
        while True:
            row = await (await connection.execute(WAITING)).fetchone()
            assert row is not None
            if row[0] == number:
                return
            await asyncio.sleep(LOOK_SECONDS)


async def test_groups_do_not_wait_for_one_another(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    first, second, *_ = await leased(buffer, tmp_path)
    async with on_its_way(buffer, shared_dsn, buffer.complete(first, 0)):
        [told] = await buffer.settle(buffer.complete(second, 0))
    assert told.state == Report.STATE_COMMITTED


async def test_of_two_results_of_one_run_that_meet_one_wins(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    first, *_ = await leased(buffer, tmp_path)
    other = buffer.another_explorer()
    async with on_its_way(buffer, shared_dsn, buffer.complete(first, 0)):
        telling = asyncio.create_task(other.settle(other.complete(first, 0, attempt=1)))
        await until_waiting(shared_dsn, 1)
        assert not telling.done()
    [told] = await telling
    assert told.state == Report.STATE_SUPERSEDED


async def test_the_last_two_runs_of_a_group_may_meet(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    assignments = await leased(buffer, tmp_path, train_batch_size=2)
    first = assignments[0]
    async with on_its_way(buffer, shared_dsn, buffer.complete(first, 0)):
        telling = asyncio.create_task(buffer.settle(buffer.complete(first, 1)))
        await until_waiting(shared_dsn, 1)
    await telling
    head, rows = await buffer.batch(1)
    assert head.num_rows == 2
    assert [row.experience.eid.run for row in rows] == [0, 1]


async def test_who_wants_a_stage_alone_is_not_overtaken_by_results(
    buffer: Buffer, shared_dsn: str, tmp_path: Path
) -> None:
    first, second, *_ = await leased(buffer, tmp_path)
    async with on_its_way(buffer, shared_dsn, buffer.complete(first, 0)):
        leasing = asyncio.create_task(buffer.lease(wait_seconds=0))
        await until_waiting(shared_dsn, 1)
        telling = asyncio.create_task(buffer.settle(buffer.complete(second, 0)))
        await until_waiting(shared_dsn, 2)
        assert not leasing.done() and not telling.done()
    await leasing
    [told] = await telling
    assert told.state == Report.STATE_COMMITTED
