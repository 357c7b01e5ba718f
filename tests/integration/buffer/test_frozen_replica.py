"""A replica that is frozen within a transaction holds up the others for a bounded time only."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.integration import freezing
from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan
from tests.integration.buffer.process import BufferProcess
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.runtime.rpc.channel import open_channel

QUICK = {
    "TRINITY_BUFFER_IDLE_TRANSACTION_SECONDS": "1",
    "TRINITY_BUFFER_PRIORITY_SECONDS": "1",
}
LEASING = "services.buffer.operations.leasing:take_leases"
STORING = "services.buffer.ingest.ingest:Ingest._write_results_in"


@asynccontextmanager
async def freezing_at(
    function: str, dsn: str, nats_url: str, folder: Path
) -> AsyncIterator[BufferProcess]:
    """A buffer that stops itself when the function has ended, within its transaction."""
    extra = {**QUICK, freezing.VARIABLE: function}
    program = (freezing.MODULE, "services.buffer")
    process = BufferProcess(dsn, nats_url, folder / "freezing.log", extra=extra, program=program)
    async with process:
        yield process


@asynccontextmanager
async def another(frozen: BufferProcess, buffer: Buffer) -> AsyncIterator[Buffer]:
    """The same stage, through a second replica of an explorer's and trainer's buffer."""
    replica = BufferProcess(frozen.dsn, frozen.nats_url, frozen.log_file.with_name("second.log"))
    async with replica, open_channel(replica.address) as channel:
        stub: BufferServiceStub = BufferServiceStub(channel)
        yield Buffer(
            stub=stub, broker=buffer.broker, key=buffer.key, incarnation=buffer.incarnation
        )


def pid_of(process: BufferProcess) -> int:
    assert process.process is not None
    return process.process.pid


def thaw(process: BufferProcess) -> None:
    os.kill(pid_of(process), signal.SIGCONT)


async def test_work_that_a_frozen_replica_was_granting_goes_to_whoever_asks_another(
    buffer_dsn: str, nats_url: str, tmp_path: Path
) -> None:
    async with (
        freezing_at(LEASING, buffer_dsn, nats_url, tmp_path) as frozen,
        talk_to(frozen) as buffer,
    ):
        await buffer.open(rollout_plan(tmp_path))
        await buffer.begin()
        await buffer.record(0)
        asking = asyncio.create_task(buffer.lease())
        await freezing.stopped(pid_of(frozen))
        async with another(frozen, buffer) as other:
            granted = (await other.lease()).assignments
            assert len(granted) == 3
            thaw(frozen)
            waiting = await asking  # the channel has asked again
            assert waiting.state == pb.LeaseAssignmentsResponse.STATE_WAITING
            assert f"held by explorer {other.explorer_id}" in waiting.reason


async def test_results_that_a_frozen_replica_was_storing_are_stored_once(
    buffer_dsn: str, nats_url: str, tmp_path: Path
) -> None:
    async with (
        freezing_at(STORING, buffer_dsn, nats_url, tmp_path) as frozen,
        talk_to(frozen) as buffer,
    ):
        await buffer.open(rollout_plan(tmp_path))
        await buffer.begin()
        await buffer.record(0)
        granted = (await buffer.lease()).assignments
        results = [buffer.complete(one, run, Made()) for one in granted for run in one.runs]
        await buffer.publish(*results)
        await freezing.stopped(pid_of(frozen))
        async with another(frozen, buffer) as other:
            await other.lease(1, wait_seconds=0)  # needs the lock that the frozen one held
            thaw(frozen)
            fates = await buffer.fates(*(one.sequence for one in results))
            assert {one.state for one in fates.values()} == {pb.CommitReport.STATE_COMMITTED}
            head, rows = await other.batch(1)
        assert head.state == pb.BatchHead.STATE_READY
        assert len({row.experience.id for row in rows}) == len(rows) == 6
