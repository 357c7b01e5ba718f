"""A database or a broker that is away: the buffer lives, says so, and goes on when it is back."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.plans import ROWS, rollout_plan
from tests.integration.buffer.process import SERVICE, BufferProcess
from tests.support.infra_fixtures import NatsUnderTest, RestartablePostgres
from trinity.api.v1 import buffer_pb2 as pb
from trinity.run.local.addresses import free_port

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
async def process(
    restartable_postgres: RestartablePostgres, nats_url: str, tmp_path: Path
) -> AsyncIterator[BufferProcess]:
    """A buffer whose database the test may stop or freeze."""
    dsn = restartable_postgres.server.dsn("buffer")
    async with BufferProcess(dsn, nats_url, tmp_path / "buffer.log") as started:
        yield started


@pytest.fixture
async def buffer(process: BufferProcess) -> AsyncIterator[Buffer]:
    async with talk_to(process) as calls:
        yield calls


async def leased(buffer: Buffer, tmp_path: Path) -> list[pb.Assignment]:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    return list((await buffer.lease()).assignments)


async def test_a_database_that_is_stopped_is_waited_for(
    buffer: Buffer,
    process: BufferProcess,
    restartable_postgres: RestartablePostgres,
    tmp_path: Path,
) -> None:
    work = await leased(buffer, tmp_path)
    restartable_postgres.stop()
    await process.wait_state(NOT_SERVING)
    assert await process.state("") == SERVING
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await buffer.lease()
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    results = [buffer.complete(one, run) for one in work for run in one.runs]
    await buffer.publish(*results)
    await restartable_postgres.start()
    await process.wait_state(SERVING)
    await buffer.fates(*(result.sequence for result in results))
    assert (await buffer.batch(1))[0].num_rows == ROWS


async def test_a_database_that_is_frozen_makes_it_live_but_not_ready(
    buffer: Buffer,
    process: BufferProcess,
    restartable_postgres: RestartablePostgres,
    tmp_path: Path,
) -> None:
    work = await leased(buffer, tmp_path)
    restartable_postgres.send_signal(signal.SIGSTOP)
    try:
        await process.wait_state(NOT_SERVING)
        assert await process.state("") == SERVING
    finally:
        restartable_postgres.send_signal(signal.SIGCONT)
    await process.wait_state(SERVING)
    await buffer.finish_all(work)
    assert (await buffer.batch(1))[0].num_rows == ROWS


async def test_it_can_be_stopped_while_its_database_is_frozen(
    buffer: Buffer,
    process: BufferProcess,
    restartable_postgres: RestartablePostgres,
    tmp_path: Path,
) -> None:
    await leased(buffer, tmp_path)
    restartable_postgres.send_signal(signal.SIGSTOP)
    try:
        await process.wait_state(NOT_SERVING)
        assert await process.stop() == 0
    finally:
        restartable_postgres.send_signal(signal.SIGCONT)


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """An address where somebody accepts connections and never says a word."""

    async def keep_quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(keep_quiet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize("what", ["a silent database", "no database", "no broker"])
async def test_while_it_waits_at_the_start_it_lives_and_can_be_stopped(
    what: str, buffer_dsn: str, nats_url: str, tmp_path: Path
) -> None:
    async with silent() as address:
        place = address if what == "a silent database" else f"127.0.0.1:{free_port()}"
        dsn = buffer_dsn if what == "no broker" else f"postgresql://buffer:x@{place}/db"
        broker = f"nats://{place}" if what == "no broker" else nats_url
        extra = {"TRINITY_BUFFER_CONNECT_SECONDS": "1000"}
        process = BufferProcess(dsn, broker, tmp_path / "buffer.log", extra)
        try:
            process.spawn()
            assert await process.state("") == SERVING
            assert await process.state(SERVICE) == NOT_SERVING
            if what != "no broker":
                async with talk_to(
                    BufferProcess(dsn, nats_url, tmp_path, port=process.port)
                ) as own:
                    with pytest.raises(grpc.aio.AioRpcError, match="is starting") as error:
                        await own.lease()
                assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            assert await process.stop() == 0
        finally:
            process.kill()


async def test_the_state_is_told_while_the_broker_is_away(
    own_buffer: Buffer, own_process: BufferProcess, nats_server: NatsUnderTest, tmp_path: Path
) -> None:
    await own_buffer.open(rollout_plan(tmp_path))
    assert (await own_buffer.status()).num_stream_pending == 0
    nats_server.kill()
    await own_process.wait_state(NOT_SERVING)
    assert (await own_buffer.status()).num_stream_pending == -1
