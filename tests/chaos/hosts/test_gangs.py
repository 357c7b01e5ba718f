"""One gang over two hosts that are network namespaces: the bits of one host, whatever is cut."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2_grpc

from examples.addition.model import save_model
from tests.chaos.hosts.network import Direction, Network, network_of, why_not
from tests.integration.trainer.peers import Peers, serve_peers
from tests.integration.trainer.service import (
    STEPS,
    final_weights,
    peers_of_four,
    running_service,
)
from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc
from trinity.api.v1 import synchronizer_pb2_grpc as synchronizer_grpc
from trinity.run.local.files import StackCredentials
from trinity.runtime.security.certificates import CredentialIssuer, parts_of
from trinity.runtime.security.credentials import VARIABLE

pytestmark = [pytest.mark.timeout(3600), pytest.mark.thorough]

SECONDS = 1200.0
NAMED_SECONDS = 10.0
CUT_SECONDS = 30.0
LONG_CUT_SECONDS = 300.0
PORT, PEERS_PORT = 50_050, 50_051
OPERATOR = "198.18.0.2"
"""The address of this process, which all hosts reach."""
HOSTS = ("leader", "other")
LOST = "a host of the worker group is lost"
DIED = "on host 1 (198.18.2.2)"
THERE, BACK = ("leader", "other"), ("other", "leader")


@dataclass
class Service:
    """A trainer on a host, and when its log said what."""

    process: asyncio.subprocess.Process
    lines: list[tuple[float, str]] = field(default_factory=list)

    async def follow(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.decode(errors="replace")))
            sys.stderr.buffer.write(line)

    async def said(self, text: str, since: float, seconds: float) -> float:
        """Seconds from `since` until it said this."""
        async with asyncio.timeout(seconds):
            while True:
                for at, line in self.lines:
                    if at >= since and text in line:
                        return at - since
                await asyncio.sleep(0.05)  # lines of another process


@dataclass
class Hosts:
    """The two hosts, with certificates for what they say to one another and to the peers."""

    network: Network
    security: StackCredentials

    @asynccontextmanager
    async def trainer(self, number: int) -> AsyncIterator[Service]:
        """The trainer of a host; killed with its ranks at the end."""
        own = self.network.address(HOSTS[number])
        settings: Mapping[str, str] = {
            "LISTEN": f"{own}:{PORT}",
            "BUFFER": f"{OPERATOR}:{PEERS_PORT}",
            "SYNCHRONIZER": f"{OPERATOR}:{PEERS_PORT}",
            "NUM_HOSTS": "2",
            "HOST": str(number),
            "GANG_ADDRESS": own,
            **({"LEADER": f"{self.network.address('leader')}:{PORT}"} if number else {}),
        }
        environment = {f"TRINITY_TRAINER_{name}": value for name, value in settings.items()}
        folder = self.security.credentials_for("trainer").folder
        argv = self.network.command(HOSTS[number], [sys.executable, "-m", "services.trainer"])
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=os.environ | environment | {"OMP_NUM_THREADS": "1", VARIABLE: str(folder)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        service = Service(process)
        following = asyncio.create_task(service.follow())
        try:
            yield service
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await following

    @asynccontextmanager
    async def peers(self, peers: Peers) -> AsyncIterator[None]:
        """Buffer and synchronizer, on the operator's address."""
        server = grpc.aio.server()
        await peers.call_buffer_ready(True)
        health_pb2_grpc.add_HealthServicer_to_server(peers.health, server)
        buffer_pb2_grpc.add_BufferServiceServicer_to_server(peers, server)
        synchronizer_grpc.add_SynchronizerServiceServicer_to_server(peers, server)
        credentials = self.security.credentials_for("buffer").server_credentials()
        server.add_secure_port(f"{OPERATOR}:{PEERS_PORT}", credentials)
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    @contextmanager
    def cut(self, *ways: Direction) -> Iterator[float]:
        """Yields when it was cut."""
        with self.network.cut(*ways):
            yield time.monotonic()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if reason := why_not():
        pytest.skip(reason)
    with network_of(HOSTS) as network:
        addresses = [network.address(name) for name in HOSTS]
        issuer = CredentialIssuer(tmp_path / "certs")
        for part in parts_of({"trainer": addresses, "buffer": [OPERATOR]}):
            issuer.issue(part, timedelta(days=1))
        yield Hosts(network, StackCredentials(tmp_path / "certs"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("addition")
    save_model(directory, seed=0)
    return directory


class HeldPeers(Peers):
    """Peers that hand out batches up to a step, and those after it when they are let to."""

    def __init__(self, directory: Path, model: Path) -> None:
        four = peers_of_four(directory, model)
        super().__init__(four.plan, {name: s.rows_of for name, s in four.stages.items()})
        self.last_step = 1

    async def GetBatch(
        self, request: buffer_pb2.GetBatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[buffer_pb2.GetBatchResponse]:
        await self.until(lambda: request.step <= self.last_step, SECONDS)
        async for part in super().GetBatch(request, context):
            yield part

    async def until_life(self, number: int) -> None:
        """Has this life train the step of its number, which no life before it had."""
        self.last_step = number
        await self.note()
        stage = self.stages["sft"]

        def is_trained() -> bool:
            reported = [report.step for report in stage.reports]
            return stage.incarnation == number and number in reported

        await self.until(lambda: is_trained() or bool(self.failure), SECONDS)
        assert self.failure == ""

    async def to_end(self) -> bytes:
        """Hands out all batches; returns the hash of the last weights."""
        self.last_step = STEPS
        await self.note()
        return await final_weights(self, SECONDS)


async def on_one_host(directory: Path, model: Path) -> bytes:
    alone = peers_of_four(directory, model)
    async with serve_peers(alone) as address, running_service(address):
        return await final_weights(alone, SECONDS)


async def test_two_hosts_end_in_the_weights_of_one(
    hosts: Hosts, tmp_path: Path, model: Path
) -> None:
    expected = await on_one_host(tmp_path / "one", model)
    calm = peers_of_four(tmp_path / "calm", model)
    async with hosts.peers(calm), hosts.trainer(0), hosts.trainer(1):
        assert await final_weights(calm, SECONDS) == expected
    assert calm.stages["sft"].incarnation == 1, "nothing was lost"


async def test_so_they_do_when_a_host_is_cut_off_in_any_way_and_its_processes_are_killed(
    hosts: Hosts, tmp_path: Path, model: Path
) -> None:
    expected = await on_one_host(tmp_path / "one", model)
    rough = HeldPeers(tmp_path / "rough", model)
    async with hosts.peers(rough), hosts.trainer(0) as leader:
        async with hosts.trainer(1) as other:
            for life, ways in enumerate(((THERE, BACK), (BACK,), (THERE,)), start=1):
                await rough.until_life(life)
                with hosts.cut(*ways) as since:
                    assert await leader.said(LOST, since, SECONDS) <= NAMED_SECONDS
                    await asyncio.sleep(CUT_SECONDS)
            await rough.until_life(4)
            since = time.monotonic()
            psutil.Process(other.process.pid).children()[-1].kill()
            assert await leader.said(DIED, since, SECONDS) <= NAMED_SECONDS, "a rank is named"
            await rough.until_life(5)
            other.process.kill()
            since = time.monotonic()
            assert await leader.said(LOST, since, SECONDS) <= NAMED_SECONDS
        async with hosts.trainer(1):
            assert await rough.to_end() == expected
    assert rough.stages["sft"].incarnation == 6, "each loss was a life"


async def test_a_cut_of_five_minutes_is_waited_for(
    hosts: Hosts, tmp_path: Path, model: Path
) -> None:
    expected = await on_one_host(tmp_path / "one", model)
    rough = HeldPeers(tmp_path / "rough", model)
    async with hosts.peers(rough), hosts.trainer(0) as leader, hosts.trainer(1):
        await rough.until_life(1)
        with hosts.cut(THERE, BACK) as since:
            assert await leader.said(LOST, since, SECONDS) <= NAMED_SECONDS
            await asyncio.sleep(LONG_CUT_SECONDS)
        assert await rough.to_end() == expected
    assert rough.stages["sft"].incarnation == 2
