"""Assembles the explorer: its parts, its background tasks, and its graceful shutdown."""

import asyncio
import logging
import time
import uuid
from collections.abc import Coroutine

from services.explorer import buffer_client
from services.explorer.buffer_client import BufferClient
from services.explorer.commits import CommitWatch
from services.explorer.counts import Counts
from services.explorer.director import Director
from services.explorer.engines import Engines, StartEngine
from services.explorer.feed import Feed
from services.explorer.nats_broker import NatsBroker
from services.explorer.patience import Patience
from services.explorer.publisher import Publisher
from services.explorer.pulse import connect, keep_readiness, watch_health
from services.explorer.servicer import SERVICE, ExplorerServicer
from services.explorer.settings import ExplorerSettings
from services.explorer.stage_setup import StageSetup
from services.explorer.synchronizer_client import ExperimentView, SynchronizerClient
from services.explorer.telemetry import observe
from services.explorer.unconfirmed import Unconfirmed
from trinity.api.v1.explorer_pb2_grpc import add_ExplorerServiceServicer_to_server
from trinity.errors import RpcError
from trinity.members import Heartbeats
from trinity.rpc.channel import open_channel
from trinity.rpc.server import RunningServer, Servicer, serve
from trinity.threads import DaemonThreads

logger = logging.getLogger(__name__)

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
            lambda: watch_health(self._buffer_channel, buffer_client.SERVICE),
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
            await server.health.stop()
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
