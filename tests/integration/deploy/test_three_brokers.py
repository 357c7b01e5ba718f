"""A broker of three nodes, given by the address of one, keeps the stream when that one is lost."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import PubAck
from nats.js.errors import Error as JetStreamError

from services.buffer.ingest.stream import RunStream
from tests.support.infra_fixtures import running
from trinity.errors import Unavailable
from trinity.run.local import binaries
from trinity.run.local.addresses import free_port
from trinity.run.local.process_spec import ProcessSpec
from trinity.runtime.subjects import RUNS_STREAM

PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.2
CONFIG = """\
server_name: {name}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: {folder} }}
cluster {{ name: three, listen: "127.0.0.1:{own}", routes: {routes} }}
"""


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[tuple[str, "ExitStack"]]]:
    """The address of each, and what ends it."""
    routes = [free_port() for _ in range(3)]
    with ExitStack() as all_of_them:
        started = []
        for number, own in enumerate(routes):
            folder = tmp_path / f"nats-{number}"
            folder.mkdir()
            port = free_port()
            config = folder / "nats.conf"
            config.write_text(
                CONFIG.format(
                    name=f"n{number}",
                    port=port,
                    folder=json.dumps(str(folder)),
                    own=own,
                    routes=json.dumps([f"nats://127.0.0.1:{one}" for one in routes]),
                )
            )
            argv = [str(binaries.nats_server()), "-c", str(config)]
            one = all_of_them.enter_context(ExitStack())
            spec = ProcessSpec(name="nats", argv=argv, log_file=folder / "log")
            one.enter_context(running(spec))
            started.append((f"nats://127.0.0.1:{port}", one))
        yield started


async def test_the_stream_outlives_the_broker_that_was_named(
    brokers: list[tuple[str, ExitStack]],
) -> None:
    address, named = brokers[0]
    async with asyncio.timeout(PATIENCE_SECONDS):
        client = await _connected(address)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await _bound(RunStream(client, 2**20, replicas=3))
            stored = await client.jetstream().stream_info(RUNS_STREAM)
            assert stored.config.num_replicas == 3
            first = await _published(client)
        await asyncio.to_thread(named.close)
        async with asyncio.timeout(PATIENCE_SECONDS):
            second = await _published(client)
        assert second.seq > first.seq
    finally:
        await client.close()


async def _connected(address: str) -> Client:
    async def ignore(_: Exception) -> None:
        """It starts, or was ended on purpose."""

    return await nats.connect(
        address, max_reconnect_attempts=-1, reconnect_time_wait=PAUSE_SECONDS, error_cb=ignore
    )


async def _bound(stream: RunStream) -> None:
    """The three have to elect whom to ask first."""
    while True:
        try:
            await stream.bind()
        except Unavailable:
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            return


async def _published(client: Client) -> PubAck:
    """Sent until it is taken, as explorers do."""
    while True:
        try:
            return await client.jetstream(timeout=2.0).publish("trinity.runs.t.e.s", b"a result")
        except (NatsError, JetStreamError, TimeoutError):
            await asyncio.sleep(PAUSE_SECONDS)
