"""A broker whose store was left half written comes up, and results flow through it again."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from services.buffer.ingest.pull import ResultPull
from services.buffer.ingest.stream import RunStream
from tests.integration.local.stacks import no_services
from tests.support.infra_fixtures import NatsUnderTest
from trinity.errors import RunFailed, Unavailable
from trinity.run.local.infrastructure import ExternalServers
from trinity.run.local.stack import LocalStack
from trinity.runtime.subjects import runs_subject

SUBJECT = runs_subject("default", "experiment", "rft")
NUM_MESSAGES = 20
MAX_BYTES = 1 << 24
STREAM = "jetstream/*/streams/TRINITY_RUNS"


def cut_in_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def overwrite(path: Path) -> None:
    path.write_bytes(b"\x00" * path.stat().st_size)


DAMAGES: list[tuple[str, Callable[[Path], None]]] = [
    (f"{STREAM}/msgs/*.blk", cut_in_half),
    (f"{STREAM}/msgs/*.blk", overwrite),
    (f"{STREAM}/msgs", shutil.rmtree),
    (f"{STREAM}/meta.inf", empty),
    (f"{STREAM}/meta.inf", cut_in_half),
    (f"{STREAM}/meta.sum", Path.unlink),
    (f"{STREAM}/obs/buffer/meta.inf", cut_in_half),
    (f"{STREAM}/obs/buffer/o.dat", cut_in_half),
    (f"{STREAM}/obs", shutil.rmtree),
]


@asynccontextmanager
async def bound(url: str) -> AsyncIterator[tuple[Client, ResultPull]]:
    """The buffer's place on the stream."""
    client = await nats.connect(url)
    try:
        yield client, await RunStream(client, MAX_BYTES).bind()
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("pattern", "damage"), DAMAGES, ids=[f"{d.__name__} {p[len(STREAM) + 1 :]}" for p, d in DAMAGES]
)
async def test_a_damaged_store_takes_results_again(
    nats_server: NatsUnderTest, pattern: str, damage: Callable[[Path], None]
) -> None:
    async with bound(nats_server.url) as (client, subscription):
        for number in range(NUM_MESSAGES):
            await client.jetstream().publish(SUBJECT, f"before {number}".encode())
        await (await subscription.fetch(1))[0].ack()
    nats_server.kill()
    found = list(nats_server.server.folder.glob(pattern))
    assert found
    for path in found:
        damage(path)
    await nats_server.start()
    async with bound(nats_server.url) as (client, subscription):
        await client.jetstream().publish(SUBJECT, b"after")
        seen: list[bytes] = []
        while b"after" not in seen:
            for message in await subscription.fetch(NUM_MESSAGES, 10.0):
                seen.append(message.data)
                await message.ack()
    before = {f"before {number}".encode() for number in range(NUM_MESSAGES)}
    assert set(seen) - {b"after"} <= before, "what is left is what was sent"


async def test_the_end_of_an_earlier_request_holds_no_result_back(
    nats_server: NatsUnderTest,
) -> None:
    async with bound(nats_server.url) as (client, pull), asyncio.timeout(20):
        taken = []
        for number in range(5):
            fetching = asyncio.create_task(pull.fetch(32, 60.0))
            await client.publish(f"{pull.inbox}.earlier", headers={"Status": "408"})
            await client.jetstream().publish(SUBJECT, f"{number}".encode())
            taken += [message.data for message in await fetching]
        assert taken == [f"{number}".encode() for number in range(5)]


async def test_a_buffer_that_lives_on_notices_that_messages_are_lost(
    nats_server: NatsUnderTest,
) -> None:
    async with bound(nats_server.url) as (client, subscription):
        await client.jetstream().publish(SUBJECT, b"before")
        await (await subscription.fetch(1))[0].ack()
        await RunStream(client, MAX_BYTES).check_position()
    nats_server.kill()
    (messages,) = nats_server.server.folder.glob(f"{STREAM}/msgs")
    shutil.rmtree(messages)
    await nats_server.start()
    client = await nats.connect(nats_server.url)
    with pytest.raises(Unavailable, match="the broker has lost messages"):
        await RunStream(client, MAX_BYTES).check_position()
    await client.close()


async def test_a_store_that_cannot_be_opened_is_named_with_what_to_do(
    tmp_path: Path, postgres_dsn: str
) -> None:
    folder = tmp_path / "infra" / "nats"
    folder.mkdir(parents=True)
    (folder / "jetstream").write_text("no directory")
    remedy = f"put a copy of {folder} in its place, or delete it to start over"
    with pytest.raises(RunFailed, match=f"^nats .*; if the broker is damaged, {remedy}$"):
        async with LocalStack(
            job_dir=tmp_path,
            services=no_services,
            externals=ExternalServers(postgres_dsn=postgres_dsn),
            max_restarts=0,
        ):
            pass
