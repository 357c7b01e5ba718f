"""Metrics tell how much waits, of the stages of a name and tenant, as long as it waits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.plans import rollout_plan
from tests.integration.buffer.process import BufferProcess
from tests.integration.telemetry.receiver import Receiver, receiver
from tests.support.infra_fixtures import RestartablePostgres
from trinity.runtime.telemetry import metrics, names
from trinity.runtime.telemetry.metrics import Instrument

SECONDS = 20.0


@pytest.fixture
def seen() -> Iterator[Receiver]:
    with receiver() as seen:
        yield seen


@pytest.fixture
async def told_of(
    buffer_dsn: str, nats_url: str, tmp_path: Path, seen: Receiver
) -> AsyncIterator[BufferProcess]:
    """A buffer that sends its metrics."""
    log = tmp_path / "buffer.log"
    async with BufferProcess(buffer_dsn, nats_url, log, extra=seen.environment()) as process:
        yield process


async def begin(buffer: Buffer, folder: Path) -> None:
    await buffer.open(rollout_plan(folder))
    await buffer.begin()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():  # noqa: ASYNC110  # it is sent
            await asyncio.sleep(0.05)


def told(seen: Receiver, one: Instrument, of: Buffer) -> float | None:
    about = {names.TENANT: of.key.tenant, names.STAGE: of.key.stage}
    return seen.newest(one.name, about)


async def test_stages_of_one_name_are_added_up(
    told_of: BufferProcess, seen: Receiver, tmp_path: Path
) -> None:
    async with talk_to(told_of) as explored, talk_to(told_of) as waiting:
        await begin(explored, tmp_path)
        await until(lambda: told(seen, metrics.CREDIT, explored) is not None)
        credit = told(seen, metrics.CREDIT, explored) or 0
        await begin(waiting, tmp_path)
        await until(lambda: told(seen, metrics.CREDIT, explored) == 2 * credit)
        await explored.record(0)
        assignments = (await explored.lease()).assignments
        num_runs = sum(len(one.runs) for one in assignments)
        await until(lambda: told(seen, metrics.OUTSTANDING, explored) == num_runs)
        await until(lambda: told(seen, metrics.CREDIT, explored) == 2 * credit - num_runs)


async def test_what_is_ready_is_told_until_the_trainer_takes_it(
    told_of: BufferProcess, seen: Receiver, tmp_path: Path
) -> None:
    """No explorer asks for work meanwhile."""
    async with talk_to(told_of) as buffer:
        await begin(buffer, tmp_path)
        await buffer.record(0)
        await buffer.finish_all((await buffer.lease()).assignments)
        await until(lambda: (told(seen, metrics.READY, buffer) or 0) > 0)
        await buffer.batch(1)
        await until(lambda: told(seen, metrics.READY, buffer) == 0)


async def test_what_the_database_cannot_take_is_told_of(
    restartable_postgres: RestartablePostgres, nats_url: str, tmp_path: Path, seen: Receiver
) -> None:
    """Nothing is known of rows meanwhile, and nothing is said of them."""
    process = BufferProcess(
        restartable_postgres.server.dsn("buffer"),
        nats_url,
        tmp_path / "buffer.log",
        extra=seen.environment(),
    )
    async with process, talk_to(process) as buffer:
        await begin(buffer, tmp_path)
        await buffer.record(0)
        first, *_ = (await buffer.lease()).assignments
        await until(lambda: told(seen, metrics.OUTSTANDING, buffer) is not None)
        restartable_postgres.stop()
        await buffer.publish(buffer.complete(first, 0))
        await until(lambda: seen.newest(metrics.STREAM_PENDING.name, {}) == 1)
        seen.figures.clear()
        await until(lambda: seen.newest(metrics.STREAM_PENDING.name, {}) == 1)
        assert told(seen, metrics.OUTSTANDING, buffer) is None
        await restartable_postgres.start()
        await until(lambda: seen.newest(metrics.STREAM_PENDING.name, {}) == 0)
