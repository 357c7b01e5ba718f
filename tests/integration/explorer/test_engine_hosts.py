"""An engine over two hosts, on loopback: it answers as one alone, and ends with either of them."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from services.explorer.control.explorer import SERVICE, ExplorerServicer
from services.explorer.delivery.outbox import Outbox
from services.explorer.engine.hosts import EngineHosts
from services.explorer.engine.interface import Engine, EngineDied, EngineOptions
from services.explorer.engine.vllm import start_vllm
from services.explorer.engine.vllm_options import detect_hardware
from services.explorer.settings import ExplorerSettings
from services.explorer.telemetry import RolloutCounters
from tests.integration.explorer.conftest import SharedEngines, engine_options
from tests.integration.explorer.test_engine import PROMPT, sampling
from tests.unit.explorer.builders import unheard_beats
from trinity.api.v1.explorer_pb2_grpc import add_ExplorerServiceServicer_to_server
from trinity.run.local.addresses import free_port
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.rpc.server import Servicer, serve

SECONDS = 240.0
NAMED_SECONDS = 120.0
LEADER, OTHER = "127.0.0.1", "127.0.0.2"
NOBODY = "127.0.0.1:9"

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(detect_hardware().has_gpu, reason="two hosts cannot share one GPU"),
]


@dataclass
class Leader:
    hosts: EngineHosts
    address: str
    waits: WaitRegistry

    async def start(self, options: EngineOptions) -> Engine:
        await self.hosts.wait_until_complete(self.waits)
        return await self.hosts.start_engine(options, start_vllm)


@asynccontextmanager
async def leading(listen: str = "127.0.0.1:0") -> AsyncIterator[Leader]:
    settings = ExplorerSettings.model_validate(
        {
            "synchronizer": NOBODY,
            "buffer": NOBODY,
            "nats_url": "nats://x",
            "listen": listen,
            "num_hosts": 2,
            "engine_address": LEADER,
            "host_wait_seconds": SECONDS,
            "drain_seconds": 0.0,
        }
    )
    hosts = EngineHosts(settings)
    waits = WaitRegistry(owner="explorer", on_change=lambda: None)
    async with unheard_beats() as heartbeats:
        servicer = Servicer(
            name=SERVICE,
            add=add_ExplorerServiceServicer_to_server,
            implementation=ExplorerServicer(
                heartbeats, RolloutCounters(), Outbox(time.monotonic), hosts
            ),
        )
        async with serve(settings, [servicer]) as server:
            yield Leader(hosts, server.address, waits)


@asynccontextmanager
async def other_host(leader: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The same service program, as an operator starts it."""
    variables = {
        "SYNCHRONIZER": NOBODY,
        "BUFFER": NOBODY,
        "NATS_URL": f"nats://{NOBODY}",
        "NUM_HOSTS": "2",
        "HOST": "1",
        "LEADER": leader,
        "ENGINE_ADDRESS": OTHER,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.explorer"),
        env=os.environ | {f"TRINITY_EXPLORER_{name}": value for name, value in variables.items()},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def on_two(model: Path) -> EngineOptions:
    options = engine_options(model, "float32")
    return replace(options, rollout=options.rollout.model_copy(update={"tensor_parallel_size": 2}))


def listening(root: int) -> set[str]:
    """Addresses at which a process and those that it started accept connections."""
    processes = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    return {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in processes
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


async def died(engine: Engine) -> EngineDied:
    with pytest.raises(EngineDied) as raised:
        async with asyncio.timeout(SECONDS):
            await engine.generate(PROMPT, sampling(max_tokens=8))
    return raised.value


async def test_it_answers_as_one_host_does_loads_weights_on_both_and_ends_with_the_other(
    models: tuple[Path, Path], engines: SharedEngines
) -> None:
    alone = await engines.get()
    expected = await alone.generate(PROMPT, sampling())
    await alone.load_weights(models[1])
    expected_later = await alone.generate(PROMPT, sampling())
    notes: list[str] = []
    async with leading() as leader:
        async with other_host(leader.address) as host:
            engine = await leader.start(on_two(models[0]))
            try:
                first = await engine.generate(PROMPT, sampling())
                await engine.load_weights(models[1])
                second = await engine.generate(PROMPT, sampling())
                assert engine.receivers.count == 2
                assert listening(os.getpid()) | listening(host.pid) <= {LEADER, OTHER}
                workers = psutil.Process(host.pid).children(recursive=True)
                assert workers
                idle = asyncio.create_task(leader.hosts.follow_engine(notes.append))
                await until(lambda: notes == ["engine over 2 hosts: 2 joined"])
                host.kill()
                with pytest.raises(EngineDied, match=r"host 1 \(127.0.0.2\)"):
                    async with asyncio.timeout(NAMED_SECONDS):
                        await idle
                assert "host 1 (127.0.0.2)" in str(await died(engine))
            finally:
                await engine.close()
        await until(lambda: not any(worker.is_running() for worker in workers))
    for found, wanted in ((first, expected), (second, expected_later)):
        assert found.token_ids == wanted.token_ids
        assert found.logprobs == pytest.approx(wanted.logprobs, abs=1e-4)


@pytest.mark.thorough
async def test_a_host_outlives_its_workers_and_its_leader(models: tuple[Path, Path]) -> None:
    address = f"127.0.0.1:{free_port()}"
    async with other_host(address) as host:
        async with leading(address) as leader:
            await kill_workers_and_start_again(leader, host.pid, models[0])
        await until(lambda: not psutil.Process(host.pid).children())
        async with leading(address) as leader:
            await until(lambda: not leader.hosts.group.missing)


async def kill_workers_and_start_again(leader: Leader, host: int, model: Path) -> None:
    engine = await leader.start(on_two(model))
    for worker in psutil.Process(host).children(recursive=True):
        worker.kill()
    reason = str(await died(engine))
    assert reason.startswith("host 1 (127.0.0.2): its workers ended with exit code -9")
    with pytest.raises(EngineDied, match=r"the rollout engine has lost host 1"):
        await engine.check()
    await engine.close()
    engine = await leader.start(on_two(model))
    assert (await engine.generate(PROMPT, sampling(max_tokens=4))).token_ids
    await engine.close()


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not met():  # noqa: ASYNC110  # states of several parties, none of which tells
            await asyncio.sleep(0.05)
