"""A broker behind TLS that falls silent is left at once: an orderly end would take too long."""

import asyncio
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.infra_fixtures import NatsUnderTest
from trinity.run.local.addresses import free_port
from trinity.run.local.nats import NatsServer
from trinity.runtime.nats import connect
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.credentials import VARIABLE, Credentials
from trinity.runtime.security.secret_files import SecretFiles

LEFT_SECONDS = 20.0
"""Three signs of life that do not come take six; to close TLS in order would add thirty."""


async def test_a_client_leaves_a_silent_broker_and_finds_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CredentialIssuer(tmp_path / "certs").issue(
        CredentialRole(name="nats"), timedelta(days=1)
    )
    monkeypatch.setenv(VARIABLE, str(folder))
    broker = _broker(tmp_path, Credentials(folder))
    await broker.start()
    assert broker.process is not None
    back = asyncio.Event()
    client = await connect(broker.url, name="test", setting="NATS_URL", on_return=back.set)
    try:
        broker.process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(LEFT_SECONDS):
            while client._reconnection_task_future is None:  # noqa: ASYNC110 (it tells nobody)
                await asyncio.sleep(0.1)
        broker.process.send_signal(signal.SIGCONT)
        async with asyncio.timeout(LEFT_SECONDS):
            await back.wait()
        await client.flush()
    finally:
        broker.kill()
        await client.close()


def _broker(root: Path, security: Credentials) -> NatsUnderTest:
    server = NatsServer(
        folder=root / "nats",
        secrets=SecretFiles(root / "secrets"),
        port=free_port(),
        monitor_port=free_port(),
        security=security,
    )
    return NatsUnderTest(server, root / "nats.log")
