"""An explorer of this process, between a small synchronizer, a small buffer and a real broker."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio
from pydantic import SecretStr

from examples.addition.model import save_model
from services.explorer.clients.buffer import SERVICE as BUFFER
from services.explorer.clients.synchronizer import SERVICE as SYNCHRONIZER
from services.explorer.control.explorer import Explorer
from services.explorer.delivery.publisher import NatsBroker
from services.explorer.engine.interface import Engine, EngineOptions
from services.explorer.settings import ExplorerSettings
from tests.integration.explorer.peers import PeerBuffer, PeerSynchronizer, write_weights
from tests.support.infra_fixtures import NatsUnderTest
from tests.unit.explorer.builders import EXPERIMENT_ID, ArithmeticEngine, build_plan
from trinity.api.v1 import synchronizer_pb2 as spb
from trinity.api.v1.buffer_pb2_grpc import add_BufferServiceServicer_to_server
from trinity.api.v1.synchronizer_pb2_grpc import add_SynchronizerServiceServicer_to_server
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.run.local.files import VARIABLE as SOCKETS
from trinity.runtime.rpc.server import Servicer, serve
from trinity.runtime.settings import ServiceSettings
from trinity.types import JsonObject, JsonValue


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The addition example's model, untrained."""
    path = tmp_path_factory.mktemp("model") / "model"
    save_model(path, 0)
    return path


@dataclass
class World:
    """What an explorer is run in."""

    synchronizer: PeerSynchronizer
    buffer: PeerBuffer
    broker: NatsUnderTest
    engine: ArithmeticEngine
    folder: Path
    model_path: Path
    addresses: dict[str, str] = field(default_factory=dict)
    num_engines_started: int = 0

    @asynccontextmanager
    async def explorer(self) -> AsyncIterator[asyncio.Event]:
        """A running explorer; the event stops it."""
        settings = ExplorerSettings(
            listen="127.0.0.1:0",
            synchronizer=self.addresses["synchronizer"],
            buffer=self.addresses["buffer"],
            nats_url=SecretStr(self.broker.explorer_url),
            lease_seconds=1.0,
            drain_seconds=1.0,
        )

        async def start(_: EngineOptions) -> Engine:
            self.num_engines_started += 1
            return self.engine

        stop = asyncio.Event()
        explorer = Explorer(
            settings=settings,
            start_engine=start,
            broker=NatsBroker(settings.nats_url.get_secret_value()),
        )
        running = asyncio.create_task(explorer.run_until(stop))
        try:
            yield stop
        finally:
            stop.set()
            await running

    async def publish(self, version: int, content: str | None = None) -> None:
        """Announce weights."""
        path = self.folder / "weights" / f"v{version}-1"
        weights = write_weights(path, version, (content or f"weights {version}").encode())
        await self.synchronizer.publish(weights)

    async def finished(self) -> None:
        """Wait until the explorer has done its part."""
        peer = self.synchronizer
        async with peer.changed:
            await peer.changed.wait_for(lambda: bool(peer.finished or peer.failures))

    async def runs_are_in_the_engine(self, count: int) -> None:
        """Wait until that many calls of the engine go on."""
        while self.engine.num_active < count:  # noqa: ASYNC110 - the engine tells nobody
            await asyncio.sleep(0.01)

    async def status_is(self, condition: Callable[[spb.Member], object]) -> None:
        """Wait until the explorer's heartbeat says so."""
        peer = self.synchronizer
        async with peer.changed:
            await peer.changed.wait_for(
                lambda: bool(peer.members) and bool(condition(peer.members[-1]))
            )

    def plan_with(self, **changes: JsonValue) -> None:
        """Let the plan have these sections, merged over the usual ones."""
        model: JsonObject = {"model_path": str(self.model_path)}
        self.synchronizer.plan = build_plan(self.folder, model=model, **changes)

    def use_reward(self, name: str) -> None:
        """Let the plan name another reward."""
        self.use_parts(default_reward_fn_type=name)

    def use_parts(self, **changes: JsonValue) -> None:
        """Let the taskset of the plan have these keys."""
        self.plan_with(buffer={"explorer_input": {"taskset": dict(changes)}})


@pytest.fixture
async def world(
    nats_server: NatsUnderTest, model_path: Path, tmp_path: Path
) -> AsyncIterator[World]:
    """Peers that serve, with weights of version 0 published."""
    plan = build_plan(tmp_path, model={"model_path": str(model_path)})
    synchronizer = PeerSynchronizer(plan, EXPERIMENT_ID)
    buffer = PeerBuffer()
    world = World(synchronizer, buffer, nats_server, ArithmeticEngine(), tmp_path, model_path)
    await world.publish(0)
    parts = [
        Servicer(
            name=SYNCHRONIZER,
            add=add_SynchronizerServiceServicer_to_server,
            implementation=synchronizer,
        ),
        Servicer(name=BUFFER, add=add_BufferServiceServicer_to_server, implementation=buffer),
    ]
    settings = ServiceSettings(drain_seconds=0.0)
    consuming = asyncio.create_task(buffer.consume(nats_server.url))
    async with serve(settings, parts[:1]) as one, serve(settings, parts[1:]) as other:
        await other.health.set_ready(True)
        world.addresses = {"synchronizer": one.address, "buffer": other.address}
        yield world
    consuming.cancel()
    await asyncio.wait([consuming])


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two sets of weights of one architecture."""
    folder = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        save_model(folder / str(seed), seed)
    return folder / "0", folder / "1"


END = 1
MAX_MODEL_LEN = 96


def engine_options(model: Path, dtype: Literal["float32", "bfloat16"]) -> EngineOptions:
    """Of the engines that tests here share."""
    return EngineOptions(
        model_path=str(model),
        max_model_len=MAX_MODEL_LEN,
        end_token_ids=(END,),
        rollout=RolloutModelConfig(dtype=dtype, gpu_memory_utilization=0.3),
    )


class SharedEngines:
    """vLLM engines by their type, each started once, with the first model's weights."""

    def __init__(self, models: tuple[Path, Path], sockets: Path) -> None:
        self.sockets = sockets
        self._models = models
        self._by_type: dict[str, Engine] = {}
        self._stack = AsyncExitStack()

    async def get(self, dtype: Literal["float32", "bfloat16"] = "float32") -> Engine:
        """One that has the first model's weights, whatever a test before had it load."""
        from services.explorer.engine.vllm import start_vllm

        if dtype not in self._by_type:
            self._by_type[dtype] = await start_vllm(engine_options(self._models[0], dtype))
            self._stack.push_async_callback(self._by_type[dtype].close)
        else:
            await self._by_type[dtype].load_weights(self._models[0])
        return self._by_type[dtype]

    async def close(self) -> None:
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def engines(
    models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SharedEngines]:
    """For all tests that leave an engine usable: one takes ten seconds of a processor to start."""
    sockets = tmp_path_factory.mktemp("s")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SOCKETS, str(sockets))
        shared = SharedEngines(models, sockets)
        try:
            yield shared
        finally:
            await shared.close()
