"""What is reached over a network is reached at an IPv6 address as well."""

import asyncio
import socket
from datetime import timedelta
from pathlib import Path

import nats
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.explorer.serving.server import _listen
from tests.support.infra_fixtures import running
from trinity.errors import UserError
from trinity.run.deploy import probe
from trinity.run.diagnosis.gather import probe_nats
from trinity.run.diagnosis.snapshot import ProbeState
from trinity.run.local import nats as local_nats
from trinity.run.local.addresses import free_port
from trinity.run.local.nats import NatsServer
from trinity.run.local.services import wait_serving
from trinity.runtime.host_port import join_address, split_address
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.server import serve
from trinity.runtime.security.certificates import CredentialIssuer, parts_of
from trinity.runtime.security.credentials import VARIABLE, Credentials
from trinity.runtime.security.secret_files import SecretFiles
from trinity.runtime.settings import ServiceSettings

HOST = "::1"
SECONDS = 10


def has_ipv6() -> bool:
    try:
        socket.create_server((HOST, 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 address")


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    root = tmp_path_factory.mktemp("credentials")
    issuer = CredentialIssuer(root)
    for part in parts_of({}):
        issuer.issue(part, timedelta(hours=1))
    return Credentials(root / "buffer")


async def test_a_service_listens_and_is_reached_there() -> None:
    async with serve(ServiceSettings(listen="[::1]:0"), []) as server:
        assert server.address == f"[::1]:{server.port}"
        await wait_serving("buffer", server.address, SECONDS)


async def test_it_does_with_certificates_and_tokens_too(credentials: Credentials) -> None:
    async with serve(ServiceSettings(listen="[::1]:0"), [], security=credentials) as server:
        async with open_channel(server.address, credentials) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        environment = {VARIABLE: str(credentials.folder), "TRINITY_BUFFER_LISTEN": server.address}
        assert await asyncio.to_thread(probe.main, ["buffer"], environment) == probe.YES


async def test_a_port_that_is_taken_is_named_in_brackets() -> None:
    async with serve(ServiceSettings(listen="[::1]:0"), []) as server:
        with pytest.raises(UserError, match=r"cannot listen on \[::1\]:\d+: Address"):
            async with serve(ServiceSettings(listen=server.address), []):
                pass


def test_a_served_model_names_a_taken_port_in_brackets() -> None:
    with (
        _listen(HOST, 0) as taken,
        pytest.raises(UserError, match=r"cannot serve at \[::1\]:\d+ "),
    ):
        _listen(HOST, taken.getsockname()[1])


async def test_a_broker_is_reached_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = local_nats._CONFIG.replace("host: {host}", 'host: "::1"')
    assert config != local_nats._CONFIG
    monkeypatch.setattr(local_nats, "_CONFIG", config)
    server = NatsServer(
        folder=tmp_path / "nats",
        secrets=SecretFiles(tmp_path / "secrets"),
        port=free_port(),
        monitor_port=free_port(),
    )
    with running(server.prepare_process(tmp_path / "log")):
        await server.wait_ready()
        url = server.url("buffer").replace("127.0.0.1", "[::1]")
        client = await nats.connect(url, connect_timeout=SECONDS)
        await client.close()
        assert (await probe_nats(url)).reply is ProbeState.ANSWERS


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("::1", 1, "[::1]:1"),
        ("fd00::7", 65_535, "[fd00::7]:65535"),
        ("an.example", 2, "an.example:2"),
    ],
)
def test_addresses_are_split_as_they_are_joined(host: str, port: int, address: str) -> None:
    assert join_address(host, port) == address
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(
    "address", ["::1:50051", "::1", "[::1]", "a:b:1", "[::1]:65536", "a:\u0661"]
)
def test_an_address_that_could_be_read_in_two_ways_is_refused(address: str) -> None:
    with pytest.raises(UserError, match=r"is not host:port|in brackets"):
        split_address(address)
