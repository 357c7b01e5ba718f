"""Each user of the broker touches its own subjects, hears its own answers, and nothing else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import ConsumerConfig

from services.buffer.ingest.stream import RunStream
from tests.support.infra_fixtures import NatsUnderTest, running
from trinity.errors import UserError
from trinity.run.local.addresses import free_port
from trinity.run.local.binaries import nats_server as nats_server_program
from trinity.run.local.process_spec import ProcessSpec
from trinity.runtime.nats import connect
from trinity.runtime.security.broker import (
    ADMIN,
    BrokerUser,
    authorization_block,
    client_options,
    explorer_user,
)
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.credentials import Credentials
from trinity.runtime.subjects import RUNS_CONSUMER, RUNS_STREAM, runs_subject

MAX_BYTES = 64 * 1024 * 1024
ANSWER_SECONDS = 0.5
SUBJECT = runs_subject("a", "experiment", "rft")


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    async def ignore(_: Exception) -> None:
        """What is not allowed is told here; whether it had an effect is what matters."""

    client = await nats.connect(url, error_cb=ignore, **client_options(url))
    try:
        yield client
    finally:
        await client.close()


async def num_messages(admin: Client) -> int:
    return int((await admin.jetstream().stream_info(RUNS_STREAM)).state.messages)


async def until_equal(figure: Callable[[], Awaitable[int]], expected: int) -> None:
    """The broker's figures follow what it was told."""
    async with asyncio.timeout(10):
        while await figure() != expected:  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.01)


async def test_the_buffer_can_keep_its_stream_and_take_from_it(nats_server: NatsUnderTest) -> None:
    async with (
        connected(nats_server.buffer_url) as buffer,
        connected(nats_server.explorer_url) as explorer,
    ):
        stream = RunStream(buffer, MAX_BYTES)
        subscription = await stream.bind()
        await explorer.jetstream().publish(SUBJECT, b"x")
        await until_equal(stream.num_pending, 1)
        await (await subscription.fetch(1))[0].ack()
        await stream.check_position()
        again = RunStream(buffer, 2 * MAX_BYTES)
        await again.bind()
        assert await again.num_pending() == 0


async def test_the_buffer_may_not_make_up_results_or_touch_other_streams(
    nats_server: NatsUnderTest,
) -> None:
    async with (
        connected(nats_server.buffer_url) as buffer,
        connected(nats_server.url) as admin,
    ):
        await RunStream(buffer, MAX_BYTES).bind()
        await admin.jetstream().add_stream(name="other", subjects=["other.>"])
        await admin.jetstream().publish("other.1", b"x")
        calls = buffer.jetstream(timeout=ANSWER_SECONDS)
        for forbidden in (
            calls.publish(SUBJECT, b"x", timeout=ANSWER_SECONDS),
            calls.stream_info("other"),
            calls.delete_stream("other"),
            calls.add_consumer("other", ConsumerConfig(durable_name="spy")),
            calls.purge_stream(RUNS_STREAM),
        ):
            with pytest.raises((NatsError, TimeoutError)):
                await forbidden
        assert await num_messages(admin) == 0


async def test_an_explorer_may_read_change_and_hear_nothing(nats_server: NatsUnderTest) -> None:
    heard: list[str] = []

    async def hear(message: nats.aio.msg.Msg) -> None:
        heard.append(message.subject)

    async with (
        connected(nats_server.buffer_url) as buffer,
        connected(nats_server.explorer_url) as explorer,
        connected(nats_server.url) as admin,
    ):
        subscription = await RunStream(buffer, MAX_BYTES).bind()
        for subject in ("trinity.>", "_INBOX.>", "_INBOX.buffer.>", "$JS.>", ">"):
            await explorer.subscribe(subject, cb=hear)
        calls = explorer.jetstream(timeout=ANSWER_SECONDS)
        await calls.publish(SUBJECT, b"x")
        for forbidden in (
            calls.stream_info(RUNS_STREAM),
            calls.purge_stream(RUNS_STREAM),
            calls.delete_stream(RUNS_STREAM),
            calls.add_consumer(RUNS_STREAM, ConsumerConfig(durable_name="spy")),
            calls.delete_consumer(RUNS_STREAM, RUNS_CONSUMER),
            calls.get_last_msg(RUNS_STREAM, SUBJECT),
            calls.publish("other.subject", b"x", timeout=ANSWER_SECONDS),
        ):
            with pytest.raises((NatsError, TimeoutError)):
                await forbidden
        [message] = await subscription.fetch(1)
        await message.ack()
        await explorer.flush()
        await until_equal(partial(num_messages, admin), 0)
        assert not heard


async def test_the_answer_to_a_result_cannot_be_sent_where_its_sender_may_not_write(
    nats_server: NatsUnderTest,
) -> None:
    """The broker answers with a sequence number, which as a request would empty the stream."""
    async with (
        connected(nats_server.buffer_url) as buffer,
        connected(nats_server.explorer_url) as explorer,
        connected(nats_server.url) as admin,
    ):
        await RunStream(buffer, MAX_BYTES).bind()
        for call in ("PURGE", "DELETE", "MSG.DELETE"):
            for _ in range(3):
                reply = f"$JS.API.STREAM.{call}.{RUNS_STREAM}"
                await explorer.publish(SUBJECT, b"x", reply=reply)
        await explorer.flush()
        last = await explorer.jetstream().publish(SUBJECT, b"last")
        assert last.seq == await num_messages(admin)


async def test_a_tenants_explorer_publishes_for_its_tenant_only(tmp_path: Path) -> None:
    users = [BrokerUser(name=ADMIN, password="x"), explorer_user("x", "a"), explorer_user("x", "b")]
    port, config = free_port(), tmp_path / "nats.conf"
    config.write_text(f"host: 127.0.0.1\nport: {port}\n{authorization_block(users)}")
    argv = [str(nats_server_program()), "-c", str(config)]
    heard: dict[str, bytes] = {}

    async def hear(message: nats.aio.msg.Msg) -> None:
        heard[message.subject] = message.data

    with running(ProcessSpec(name="nats", argv=argv, log_file=tmp_path / "nats.log")):
        admin = await connect(f"nats://admin:x@127.0.0.1:{port}", name="admin", setting="URL")
        await admin.subscribe(">", cb=hear)
        await admin.flush()
        for user in ("explorer-a", "explorer-b"):
            async with connected(f"nats://{user}:x@127.0.0.1:{port}") as explorer:
                for tenant in ("a", "b", "explorer-a"):
                    await explorer.publish(runs_subject(tenant, "one", "rft"), user.encode())
                await explorer.flush()
        await admin.flush()
        await admin.close()
    assert heard == {
        "trinity.runs.a.one.rft": b"explorer-a",
        "trinity.runs.b.one.rft": b"explorer-b",
    }


async def test_a_broker_with_tls_takes_nobody_without_its_authoritys_certificate(
    nats_server: NatsUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nats_server.kill()
    hour = timedelta(hours=1)
    folders = [
        CredentialIssuer(tmp_path / name).issue(CredentialRole(name="nats"), hour)
        for name in ("own", "other")
    ]
    own, other = map(Credentials, folders)
    nats_server.server = replace(nats_server.server, security=own)
    await nats_server.start()
    url = nats_server.explorer_url
    assert url.startswith("tls://")
    for name, is_let_in in (("own", True), ("other", False), ("own", True)):
        folder = {"own": own, "other": other}[name].folder
        monkeypatch.setenv("TRINITY_SECURITY_DIR", str(folder))
        attempt = connect(url, name="explorer", setting="URL", timeout_seconds=3.0)
        if is_let_in:
            client = await attempt
            assert client.is_connected
            await client.close()
        else:
            with pytest.raises(Exception, match="does not answer"):
                await attempt
    plain = url.replace("tls://", "nats://")
    monkeypatch.delenv("TRINITY_SECURITY_DIR")
    with pytest.raises((NatsError, OSError, TimeoutError, UserError)):
        async with asyncio.timeout(3):
            await nats.connect(plain, allow_reconnect=False, max_reconnect_attempts=1)
