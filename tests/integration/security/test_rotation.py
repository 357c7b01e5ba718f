"""Certificates, tokens and keys are replaced while a server and its clients run."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import grpc
import pytest

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1 import synchronizer_pb2_grpc
from trinity.runtime.rpc.channel import open_channel, open_sync_channel
from trinity.runtime.rpc.server import RunningServer, Servicer, serve
from trinity.runtime.security.authorization import Scope
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.credentials import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    TOKEN,
    Credentials,
)
from trinity.runtime.settings import ServiceSettings

HOUR = timedelta(hours=1)
CALL_SECONDS = 10.0
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


class Synchronizer(synchronizer_pb2_grpc.SynchronizerServiceServicer):
    """Answers, and streams a message each time that it is told to."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[None] = asyncio.Queue()
        self.shown: list[bytes] = []
        """Certificates of the callers of GetStatus."""

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetStatusResponse:
        self.shown += context.auth_context()["x509_pem_cert"]
        return pb.GetStatusResponse()

    async def WatchExperiments(
        self, request: pb.WatchExperimentsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchExperimentsResponse]:
        while True:
            yield pb.WatchExperimentsResponse()
            await self.changes.get()


class Setup:
    """A server, its authority, and a client's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.issuer = CredentialIssuer(root)
        self.server_folder = self.issuer.issue(CredentialRole(name="synchronizer", scopes=()), HOUR)
        self.client_folder = self.issue(HOUR)
        self.implementation = Synchronizer()

    def issue(self, lifetime: timedelta) -> Path:
        """A token of this lifetime, and a certificate that outlives it."""
        part = CredentialRole(name="client", scopes=(Scope.READ,))
        folder = self.issuer.issue(part, lifetime)
        if lifetime < HOUR:
            self.issuer.issue(CredentialRole(name="client"), HOUR)
        return folder

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[RunningServer]:
        servicer = Servicer(
            name="trinity.api.v1.SynchronizerService",
            add=synchronizer_pb2_grpc.add_SynchronizerServiceServicer_to_server,
            implementation=self.implementation,
        )
        settings = ServiceSettings(drain_seconds=0.0)
        async with serve(settings, [servicer], security=Credentials(self.server_folder)) as server:
            yield server

    def stub(self, channel: grpc.aio.Channel) -> synchronizer_pb2_grpc.SynchronizerServiceStub:
        return synchronizer_pb2_grpc.SynchronizerServiceStub(channel)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


async def test_a_replaced_token_counts_with_the_next_call(setup: Setup) -> None:
    client = Credentials(setup.client_folder)
    async with setup.serving() as server, open_channel(server.address, client) as channel:
        stub = setup.stub(channel)
        await stub.GetStatus(pb.GetStatusRequest(), timeout=CALL_SECONDS)
        setup.issue(timedelta(seconds=-1))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetStatus(pb.GetStatusRequest(), timeout=CALL_SECONDS)
        assert refused.value.code() is UNAUTHENTICATED
        setup.issue(HOUR)
        await stub.GetStatus(pb.GetStatusRequest(), timeout=CALL_SECONDS)
        (setup.client_folder / TOKEN).unlink()
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.GetStatus(pb.GetStatusRequest(), timeout=CALL_SECONDS)


async def test_an_open_stream_ends_with_its_token(setup: Setup) -> None:
    setup.issue(timedelta(seconds=3))
    client = Credentials(setup.client_folder)
    async with setup.serving() as server, open_channel(server.address, client) as channel:
        stream = setup.stub(channel).WatchExperiments(pb.WatchExperimentsRequest(), timeout=30)
        assert await stream.read() == pb.WatchExperimentsResponse()
        await asyncio.sleep(3)
        setup.implementation.changes.put_nowait(None)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.read()
        assert ended.value.code() is UNAUTHENTICATED
        assert "expired" in (ended.value.details() or "")


async def test_a_servers_new_certificate_counts_with_the_next_connection(setup: Setup) -> None:
    client = Credentials(setup.client_folder)
    async with setup.serving() as server:
        before = await _certificate_of(server.port)
        setup.issuer.issue(CredentialRole(name="synchronizer", scopes=()), HOUR)
        assert await _certificate_of(server.port) != before
        (setup.server_folder / KEY).unlink()  # half replaced: the one before goes on
        async with open_channel(server.address, client) as channel:
            await setup.stub(channel).GetStatus(pb.GetStatusRequest(), timeout=CALL_SECONDS)
        assert (setup.server_folder / CERTIFICATE).exists()


async def test_a_clients_new_certificate_counts_with_the_next_call(setup: Setup) -> None:
    client, shown = Credentials(setup.client_folder), setup.implementation.shown
    certificate, key = setup.client_folder / CERTIFICATE, setup.client_folder / KEY
    async with (
        setup.serving() as server,
        open_channel(server.address, client) as channel,
        grpc.aio.secure_channel(server.address, client.channel_credentials()) as plain,
    ):
        stub = setup.stub(channel)
        stream = stub.WatchExperiments(pb.WatchExperimentsRequest(), timeout=300)
        assert await stream.read() == pb.WatchExperimentsResponse()
        with open_sync_channel(server.address, client) as for_threads:
            ask = synchronizer_pb2_grpc.SynchronizerServiceStub(for_threads).GetStatus
            before, former_key = certificate.read_bytes(), key.read_bytes()
            await stub.GetStatus(pb.GetStatusRequest(), timeout=CALL_SECONDS)
            await asyncio.to_thread(ask, pb.GetStatusRequest(), timeout=CALL_SECONDS)
            setup.issue(HOUR)
            after, new_key = certificate.read_bytes(), key.read_bytes()
            key.write_bytes(former_key)  # half replaced
            await stub.GetStatus(pb.GetStatusRequest(), timeout=CALL_SECONDS)
            key.write_bytes(new_key)
            await stub.GetStatus(pb.GetStatusRequest(), timeout=CALL_SECONDS)
            await asyncio.to_thread(ask, pb.GetStatusRequest(), timeout=CALL_SECONDS)
        assert shown == [before, before, before, after, after]
        setup.implementation.changes.put_nowait(None)
        assert await stream.read() == pb.WatchExperimentsResponse(), "it goes on"
        await setup.stub(plain).GetStatus(pb.GetStatusRequest(), timeout=CALL_SECONDS)
        assert shown[5:] == [before], "a channel of gRPC's own keeps the former one"


async def test_the_brokers_clients_show_a_new_certificate_when_they_connect(setup: Setup) -> None:
    client = Credentials(setup.client_folder)
    context = client.ssl_context()
    shown = []
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(setup.server_folder / CERTIFICATE, setup.server_folder / KEY)
    tls.load_verify_locations(setup.server_folder / AUTHORITY)
    tls.verify_mode = ssl.CERT_REQUIRED

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown.append(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.write(b"!")
        writer.close()

    async def connect(port: int) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        assert await reader.read(1) == b"!"
        writer.close()
        return (setup.client_folder / CERTIFICATE).read_text()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        there = [await connect(port)]
        setup.issue(HOUR)
        there.append(await connect(port))
    assert there[0] != there[1]
    assert [ssl.DER_cert_to_PEM_cert(certificate) for certificate in shown] == there


async def _certificate_of(port: int) -> str:

    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))


async def test_threads_show_their_token_too(setup: Setup) -> None:
    client = Credentials(setup.client_folder)

    def ask(address: str) -> object:
        with open_sync_channel(address, client) as channel:
            stub = synchronizer_pb2_grpc.SynchronizerServiceStub(channel)
            return stub.GetStatus(pb.GetStatusRequest(), timeout=CALL_SECONDS)

    async with setup.serving() as server:
        assert await asyncio.to_thread(ask, server.address) == pb.GetStatusResponse()
