"""A stage whose plan another version of the program wrote stops nobody else."""

import asyncio
from pathlib import Path

import grpc
import psycopg
import pytest

from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.plans import ROWS, rollout_plan
from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import buffer_pb2
from trinity.types import StageKey

_SPOIL = (
    "UPDATE buffer.stage SET plan = (plan::jsonb || '{\"was_known\": 1}')::text"
    " WHERE tenant = %s AND experiment_id = %s AND stage = %s"
)
_MEND = (
    "UPDATE buffer.stage SET plan = (plan::jsonb - 'was_known')::text"
    " WHERE tenant = %s AND experiment_id = %s AND stage = %s"
)
_LETTERS = "SELECT reason FROM buffer.dead_letter WHERE subject = %s"
LEFT = "results of a stage wait: its plan cannot be read"
PASSED_OVER = "a stage is passed over: its plan cannot be read"


def spoil(dsn: str, key: StageKey) -> None:
    """Let its plan be one of another version."""
    with psycopg.connect(dsn) as connection:
        connection.execute(_SPOIL, [key.tenant, key.experiment_id, key.stage])


def lines_of(log_file: Path) -> list[str]:
    return log_file.read_text().splitlines()


async def passed_over(log_file: Path) -> str:
    """What the log says of it, once it does."""
    async with asyncio.timeout(CALL_SECONDS):
        while True:
            if found := next((one for one in lines_of(log_file) if PASSED_OVER in one), ""):
                return found
            await asyncio.sleep(0.05)


async def test_a_forgotten_stage_of_another_version_stops_no_other(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    """Loops look at all open stages again and again, and say whom they leave out."""
    await own_buffer.open(rollout_plan(tmp_path))
    own_process.kill()
    spoil(own_process.dsn, own_buffer.key)
    await own_process.start()
    said = await passed_over(own_process.log_file)
    key = own_buffer.key
    for part in (key.tenant, key.experiment_id, key.stage, "was_known"):
        assert part in said
    async with talk_to(own_process) as other:
        await other.open(rollout_plan(tmp_path))
        await other.begin()
        await other.record(0)
        await other.finish_all((await other.lease()).assignments)
        _, rows = await other.batch(1)
    assert len(rows) == ROWS


async def test_who_names_such_a_stage_is_told_what_is_wrong_with_it(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    await own_buffer.open(rollout_plan(tmp_path))
    spoil(own_process.dsn, own_buffer.key)
    for call in (own_buffer.lease, own_buffer.begin, own_buffer.stages):
        with pytest.raises(grpc.aio.AioRpcError, match=r"stage rft .*: was_known: ") as error:
            await call()
        assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def mend(dsn: str, key: StageKey) -> None:
    """Let the version of the buffer that opened the stage be there again."""
    with psycopg.connect(dsn) as connection:
        connection.execute(_MEND, [key.tenant, key.experiment_id, key.stage])


def num_letters(dsn: str, subject: str) -> int:
    with psycopg.connect(dsn) as connection:
        return len(connection.execute(_LETTERS, [subject]).fetchall())


async def said_in(log_file: Path, text: str) -> None:
    """Wait until the log says it."""
    async with asyncio.timeout(CALL_SECONDS):
        while not any(text in one for one in lines_of(log_file)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_results_of_such_a_stage_wait_for_a_version_that_can_read_its_plan(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    dsn = own_process.dsn
    await own_buffer.open(rollout_plan(tmp_path))
    await own_buffer.begin()
    await own_buffer.record(0)
    first, *_ = (await own_buffer.lease()).assignments
    spoil(dsn, own_buffer.key)
    results = [own_buffer.complete(first, run) for run in first.runs]
    await own_buffer.publish(*results)
    await said_in(own_process.log_file, LEFT)
    assert num_letters(dsn, own_buffer.subject) == 0
    assert await own_buffer.watched(*(one.sequence for one in results)) == []
    async with talk_to(own_process) as other:
        await other.open(rollout_plan(tmp_path))
        await other.begin()
        await other.record(0)
        await other.finish_all((await other.lease()).assignments)
    mend(dsn, own_buffer.key)
    fates = await own_buffer.fates(*(one.sequence for one in results))
    assert {one.state for one in fates.values()} == {buffer_pb2.CommitReport.STATE_COMMITTED}


async def test_results_of_such_a_stage_that_has_ended_wait_for_nobody(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    await own_buffer.open(rollout_plan(tmp_path))
    await own_buffer.begin()
    await own_buffer.record(0)
    first, *_ = (await own_buffer.lease()).assignments
    await own_buffer.cancel("enough")
    spoil(own_process.dsn, own_buffer.key)
    [told] = await own_buffer.settle(own_buffer.complete(first, 0))
    assert told.state == buffer_pb2.CommitReport.STATE_REJECTED
    assert num_letters(own_process.dsn, own_buffer.subject) == 1
