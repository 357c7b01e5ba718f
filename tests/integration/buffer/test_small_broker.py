"""A broker with less room than is asked for: the stream is fitted to it, and refusals are told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.js.errors import APIError

from services.buffer.ingest.stream import MIN_STREAM_BYTES, RunStream
from tests.support.infra_fixtures import running
from trinity.errors import Unavailable
from trinity.run.local import nats
from trinity.run.local.addresses import free_port
from trinity.run.local.nats import NatsServer
from trinity.runtime.nats import fault_of_broker
from trinity.runtime.security.broker import ADMIN
from trinity.runtime.security.secret_files import SecretFiles
from trinity.runtime.subjects import RUNS_STREAM, runs_subject

MIB = 2**20
WANTED = 2048 * MIB
SUBJECT = runs_subject("t", "e", "s")


@asynccontextmanager
async def broker_with(
    root: Path, mebibytes: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Client]:
    monkeypatch.setattr(nats, "_store_bytes", lambda _: mebibytes * MIB)
    server = NatsServer(
        folder=root / "data",
        secrets=SecretFiles(root / "secrets"),
        port=free_port(),
        monitor_port=free_port(),
    )
    with running(server.prepare_process(root / "nats.log")):
        await server.wait_ready()
        client = Client()
        await client.connect(server.url(ADMIN))
        try:
            yield client
        finally:
            await client.close()


async def size_of_stream(client: Client) -> int:
    info = await client.jetstream().stream_info(RUNS_STREAM)
    return info.config.max_bytes or 0


async def test_the_stream_is_sized_to_the_store_and_grows_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_with(tmp_path, 300, monkeypatch) as client:
        await RunStream(client, WANTED).bind()
        assert 200 * MIB < await size_of_stream(client) <= 300 * MIB
        await client.jetstream().publish(SUBJECT, b"a result")
    async with broker_with(tmp_path, 1000, monkeypatch) as client:
        await RunStream(client, WANTED).bind()
        assert 600 * MIB < await size_of_stream(client) <= 1000 * MIB
    async with broker_with(tmp_path, 4000, monkeypatch) as client:
        await RunStream(client, WANTED).bind()
        assert await size_of_stream(client) == WANTED
        state = (await client.jetstream().stream_info(RUNS_STREAM)).state
        assert state.messages == 1, "what was stored is there"


async def test_that_stream_alone_would_be_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the broker does not fit a stream by itself."""
    async with broker_with(tmp_path, 300, monkeypatch) as client:
        with pytest.raises(APIError, match="10047"):
            await RunStream(client, WANTED)._place_stream(WANTED)


async def test_too_little_room_is_a_refusal_and_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_with(tmp_path, MIN_STREAM_BYTES // MIB - 1, monkeypatch) as client:
        with pytest.raises(Unavailable, match=r"the broker refuses: .*make room") as told:
            await RunStream(client, WANTED).bind()
        assert "does not answer" not in str(told.value)
        with pytest.raises(Exception) as none_there:
            await client.jetstream().publish(SUBJECT, b"a result")
        assert "has no stream" in str(fault_of_broker(none_there.value))


async def test_silence_is_still_called_silence() -> None:
    assert "does not answer" in str(fault_of_broker(TimeoutError()))
