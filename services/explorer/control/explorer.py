"""Decides what this explorer works on: the oldest of the experiments with the fewest explorers."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.explorer.clients import buffer
from services.explorer.clients.buffer import BufferClient
from services.explorer.clients.streams import Feed, following
from services.explorer.clients.synchronizer import ExperimentView, SynchronizerClient
from services.explorer.control.experiment import ExperimentWork
from services.explorer.control.stage import StageSetup
from services.explorer.counters import Counts
from services.explorer.delivery.commits import CommitWatch
from services.explorer.delivery.outbox import Unconfirmed
from services.explorer.delivery.publisher import NatsBroker, Publisher
from services.explorer.engines import Engines, StartEngine
from services.explorer.retry import Patience
from services.explorer.settings import ExplorerSettings
from services.explorer.telemetry import observe
from trinity.api.v1 import explorer_pb2 as pb
from trinity.api.v1.explorer_pb2_grpc import (
    ExplorerServiceServicer,
    add_ExplorerServiceServicer_to_server,
)
from trinity.errors import RpcError
from trinity.rpc.channel import open_channel
from trinity.rpc.health import Health
from trinity.rpc.server import RunningServer, Servicer, serve
from trinity.runtime.presence import Heartbeats
from trinity.runtime.threads import DaemonThreads
from trinity.types import StageKey

logger = logging.getLogger(__name__)


IDLE = "idle"


class Director:
    """Works on one experiment at a time, until it is over or `stop` is called."""

    def __init__(
        self,
        *,
        synchronizer: SynchronizerClient,
        experiments: Feed[tuple[ExperimentView, ...]],
        engines: Engines,
        setup: StageSetup,
        unconfirmed: Unconfirmed,
        beats: Heartbeats,
    ) -> None:
        self._synchronizer = synchronizer
        self._experiments = experiments
        self._engines = engines
        self._setup = setup
        self._unconfirmed = unconfirmed
        self._beats = beats
        self._work: ExperimentWork | None = None
        self._stopping = False

    @property
    def key(self) -> StageKey | None:
        """The stage in which leases are held, if any."""
        work = self._work
        return work.key if work is not None and work.holds_leases else None

    async def run(self) -> None:
        """Runs until cancelled, or until `stop` was called and the work in progress is over."""
        seen: tuple[ExperimentView, ...] | None = None
        while not self._stopping:
            self._beats.set_activity(IDLE)
            seen = await self._next_state(seen)
            await self._work_on(await self._choice([view for view in seen if _has_work(view)]))

    def stop(self) -> bool:
        """Stops taking work; returns whether there are runs that may still end."""
        self._stopping = True
        return self._work.stop() if self._work is not None else False

    async def _next_state(
        self, seen: tuple[ExperimentView, ...] | None
    ) -> tuple[ExperimentView, ...]:
        """Waits until the experiments differ from `seen` and one of them has work."""
        return await self._experiments.wait_for(
            lambda now: now is not seen and any(map(_has_work, now))
        )

    async def _choice(self, waiting: Sequence[ExperimentView]) -> ExperimentView:
        """Picks the experiment with the fewest other explorers, so that explorers spread out."""
        if len(waiting) == 1:
            return waiting[0]
        try:
            others = await self._synchronizer.num_others(self._beats.member)
        except RpcError as error:
            logger.info("other explorers cannot be seen", extra={"reason": str(error)})
            return waiting[0]
        return min(waiting, key=lambda experiment: others[experiment.id])

    async def _work_on(self, experiment: ExperimentView) -> None:
        """Works on the experiment, then drops its unconfirmed results unless `stop` was called."""
        self._beats.set_work(experiment.id, "")
        self._work = ExperimentWork(
            experiment=experiment,
            synchronizer=self._synchronizer,
            engines=self._engines,
            setup=self._setup,
            beats=self._beats,
        )
        await self._work.run()
        self._beats.set_work("", "")
        if not self._stopping:
            self._unconfirmed.forget(self._work.key)
            self._work = None


def _has_work(experiment: ExperimentView) -> bool:
    return experiment.is_running and any(not stage.is_over for stage in experiment.stages)


READINESS_SECONDS = 0.5
WATCH_SECONDS = 600.0


async def keep_readiness(health: Health, needs: Mapping[str, Callable[[], bool]]) -> None:
    """Reports ready while everything needed is usable, otherwise what is not usable."""
    while True:
        missing = [name for name, is_usable in needs.items() if not is_usable()]
        await health.set_ready(not missing, f"not usable: {', '.join(missing)}")
        await asyncio.sleep(READINESS_SECONDS)


async def watch_health(channel: grpc.aio.Channel, service: str) -> AsyncIterator[bool]:
    """Streams the readiness of a service, as it reports it."""
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    async for response in following(service, stub.Watch(request, timeout=WATCH_SECONDS)):
        yield response.status == health_pb2.HealthCheckResponse.SERVING


async def connect(broker: NatsBroker, patience: Patience) -> None:
    """Connects for the first time; later the client reconnects by itself."""
    await patience.persist(broker.connect, waits_for="broker", purpose="connect")


SERVICE = "trinity.api.v1.ExplorerService"


class ExplorerServicer(ExplorerServiceServicer):
    """Answers requests from memory."""

    def __init__(self, beats: Heartbeats, counts: Counts, unconfirmed: Unconfirmed) -> None:
        self._beats = beats
        self._counts = counts
        self._unconfirmed = unconfirmed

    async def GetExplorerStatus(
        self,
        request: pb.GetExplorerStatusRequest,  # noqa: ARG002 empty by contract
        context: "grpc.aio.ServicerContext[object, object]",  # noqa: ARG002
    ) -> pb.GetExplorerStatusResponse:
        """Returns what the explorer is doing now."""
        member = self._beats.member
        return pb.GetExplorerStatusResponse(
            explorer_id=member.id,
            experiment_id=member.experiment_id,
            stage=member.stage,
            activity=member.activity,
            loaded_version=member.version,
            num_running=self._counts.num_running,
            num_unconfirmed=len(self._unconfirmed),
            num_generated_tokens=self._counts.num_generated_tokens,
        )


MAX_THREADS = 64
"""Blocking workflows that run at a time; more of them wait their turn."""
FLUSH_SECONDS = 3.0
RELEASE_SECONDS = 1.0


class Explorer:
    """All parts of one explorer process."""

    def __init__(
        self, *, settings: ExplorerSettings, start_engine: StartEngine, broker: NatsBroker
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._id = str(uuid.uuid4())
        self._counts = Counts()
        self._unconfirmed = Unconfirmed(time.monotonic)
        self._buffer_channel = open_channel(settings.buffer)
        self._synchronizer_channel = open_channel(settings.synchronizer)
        self._buffer = BufferClient(self._buffer_channel, settings.lease_holder or self._id)
        self._synchronizer = SynchronizerClient(self._synchronizer_channel, settings.tenant)
        self._beats = Heartbeats(self._synchronizer.stub, member_id=self._id, role="explorer")
        self._patience = Patience(self._beats.waits)
        self._engines = Engines(start=start_engine, waits=self._beats.waits)
        self._experiments: Feed[tuple[ExperimentView, ...]] = Feed(
            self._synchronizer.watch_experiments,
            waits_for="synchronizer",
            purpose="follow what runs",
            patience=self._patience,
        )
        self._buffer_health: Feed[bool] = Feed(
            lambda: watch_health(self._buffer_channel, buffer.SERVICE),
            waits_for="buffer",
            purpose="follow its health",
            patience=self._patience,
        )
        self._director = self._make_director()
        observe(self._counts, self._unconfirmed)

    def _make_director(self) -> Director:
        setup = StageSetup(
            settings=self._settings,
            buffer=self._buffer,
            unconfirmed=self._unconfirmed,
            threads=DaemonThreads(name="workflow", max_threads=MAX_THREADS),
            beats=self._beats,
            counts=self._counts,
        )
        return Director(
            synchronizer=self._synchronizer,
            experiments=self._experiments,
            engines=self._engines,
            setup=setup,
            unconfirmed=self._unconfirmed,
            beats=self._beats,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serves and works until `stop` is set, then shuts down in order."""
        servicer = Servicer(
            name=SERVICE,
            add=add_ExplorerServiceServicer_to_server,
            implementation=ExplorerServicer(self._beats, self._counts, self._unconfirmed),
        )
        try:
            async with self._broker, serve(self._settings, [servicer]) as server:
                self._beats.set_address(server.address)
                async with self._beats:
                    await self._work(server, stop)
        finally:
            await self._close()

    async def _work(self, server: RunningServer, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(coroutine) for coroutine in self._beside(server)]
            directing = tasks.create_task(self._director.run())
            await stop.wait()
            await server.health.shut_down()
            if self._director.stop():
                await asyncio.wait([directing], timeout=self._settings.drain_seconds)
            directing.cancel()
            await asyncio.wait([directing])
            await self._hand_over()
            for task in background:
                task.cancel()

    def _beside(self, server: RunningServer) -> list[Coroutine[None, None, None]]:
        publisher = Publisher(
            producer=self._id,
            unconfirmed=self._unconfirmed,
            broker=self._broker,
            blobs=self._buffer,
        )
        commits = CommitWatch(producer=self._id, buffer=self._buffer, unconfirmed=self._unconfirmed)
        needs = {
            "engine": lambda: self._engines.is_running,
            "synchronizer": lambda: self._experiments.is_open,
            "buffer": lambda: self._buffer_health.is_open and bool(self._buffer_health.current),
            "broker": lambda: self._broker.is_connected,
        }
        return [
            connect(self._broker, self._patience),
            publisher.run(),
            commits.run(),
            self._experiments.run(),
            self._buffer_health.run(),
            keep_readiness(server.health, needs),
        ]

    async def _hand_over(self) -> None:
        """Sends the remaining results and releases the leases, as far as time permits."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._unconfirmed.wait_all_sent()
        except TimeoutError:
            logger.warning("results were not sent", extra={"results": len(self._unconfirmed)})
        if (key := self._director.key) is None:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._buffer.release(key)
        except (RpcError, TimeoutError) as error:
            logger.warning("leases were not released", extra={"reason": str(error)})

    async def _close(self) -> None:
        self._unconfirmed.close()
        await self._engines.close()
        await self._buffer_channel.close()
        await self._synchronizer_channel.close()
