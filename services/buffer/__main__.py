"""Runs the buffer (`python -m services.buffer`), or only migrates its schema."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from services.buffer.ingest.ingest import Ingest, PlanVersionWaits
from services.buffer.ingest.stream import RunStream, connect
from services.buffer.ingest.wire import decode_sample
from services.buffer.maintenance import (
    FEEDBACK_TIMEOUTS,
    STRAGGLER_CUTOFF,
    QueueDepthMetrics,
    run_feedback_timeouts,
    run_maintenance,
    run_retention,
    run_straggler_cutoff,
)
from services.buffer.migrations import MIGRATIONS
from services.buffer.operations.batching import BatchComposer
from services.buffer.operations.results import ResultWriter
from services.buffer.pipeline.pipeline import ExperiencePipeline
from services.buffer.servicer import BufferServicer, QueryServicer
from services.buffer.servicer.common import LongPoller, UploadMemoryBudget
from services.buffer.servicer.taskset_calls import TasksetServicer
from services.buffer.settings import BufferSettings, MigrationSettings
from services.buffer.sink.writer import ExperienceSinkWriter
from services.buffer.store.database import CHANNEL, BufferDatabase
from services.buffer.store.quotas import BufferQuotas
from services.buffer.tasksets.background_jobs import BackgroundJobs
from services.buffer.tasksets.library import FeatureLibrary, TasksetLibrary
from services.buffer.tasksets.task_pipeline import PipelineLimits, SubmittedImages
from services.buffer.tenants import TenantPolicy
from services.buffer.workers.functions import FunctionRunner
from trinity.api.v1 import buffer_pb2, query_pb2, taskset_pb2
from trinity.api.v1.buffer_pb2_grpc import add_BufferServiceServicer_to_server
from trinity.api.v1.query_pb2_grpc import add_QueryServiceServicer_to_server
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.api.v1.taskset_pb2_grpc import add_TasksetServiceServicer_to_server
from trinity.runtime.loops import LoopKeeper, LoopKind
from trinity.runtime.members import WaitKind
from trinity.runtime.nats_client import LenientClient
from trinity.runtime.notifications import Listener
from trinity.runtime.postgres import async_engine, report_health, wait_until_up
from trinity.runtime.presence import Heartbeats, WaitRegistry
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.health import Health
from trinity.runtime.rpc.runner import run_service
from trinity.runtime.rpc.server import Servicer, serve
from trinity.runtime.security.credentials import Credentials

logger = logging.getLogger(__name__)
SERVICE = buffer_pb2.DESCRIPTOR.services_by_name["BufferService"].full_name
TASKSETS = taskset_pb2.DESCRIPTOR.services_by_name["TasksetService"].full_name
QUERIES = query_pb2.DESCRIPTOR.services_by_name["QueryService"].full_name
SCHEMA = "buffer"
POOL_SIZE = 10
"""Connections in the pool; the pipeline may use eight of them."""
GC_THRESHOLD = 10_000
"""Threshold of the garbage collector: the default of 700 costs 4 % of the time and frees little."""
M_MMAP_THRESHOLD = -3
LARGE_BYTES = 2 * 1024 * 1024
DATABASE = "database"
BROKER = "broker"
NO_BROKER = "the broker does not answer"


def set_mmap_threshold() -> None:
    """Fixes the mmap threshold, so that every large block gets its own mapping.

    By default glibc raises the threshold, takes ever larger blocks from its per-thread heaps, and
    does not return freed memory in them to the system. Has no effect without glibc.
    """
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
    except (AttributeError, OSError):
        return


class BufferReadiness:
    """Sets readiness from database and broker, and shows a wait for each that is missing."""

    def __init__(
        self, *, health: Health, ingest: Ingest, stream: RunStream, waits: WaitRegistry
    ) -> None:
        self._health = health
        self._ingest = ingest
        self._stream = stream
        self._waits = waits

    async def set_ready(self, ready: bool, reason: str = "") -> None:
        """Updates readiness with the state of the database."""
        is_bound = self._ingest.bound.is_set() and self._stream.is_connected
        self._show(DATABASE, None if ready else reason)
        self._show(BROKER, None if is_bound else NO_BROKER)
        if ready and not is_bound:
            ready, reason = False, NO_BROKER
        await self._health.set_ready(ready, reason)

    def _show(self, name: str, reason: str | None) -> None:
        """Shows or clears a wait, without a deadline: the buffer never gives up, its callers do."""
        if reason is None:
            self._waits.clear(name)
        else:
            kind = WaitKind.NO_ANSWER
            self._waits.set(name, waits_for=name, reason=reason, kind=kind)


@dataclass(frozen=True, slots=True)
class SynchronizerHeartbeat:
    """The waits of this process; without a synchronizer they are not reported."""

    waits: WaitRegistry
    heartbeats: Heartbeats | None = None

    def set_address(self, address: str) -> None:
        """Reports the address at which this process serves."""
        if self.heartbeats is not None:
            self.heartbeats.set_address(address)
            self.heartbeats.set_activity("serving")


@contextlib.asynccontextmanager
async def synchronizer_heartbeat(synchronizer: str) -> AsyncIterator[SynchronizerHeartbeat]:
    """Sends heartbeats while the block runs."""
    if not synchronizer:
        yield SynchronizerHeartbeat(WaitRegistry(owner="buffer", on_change=lambda: None))
        return
    async with open_channel(synchronizer) as channel:
        stub = SynchronizerServiceStub(channel)
        async with Heartbeats(stub, member_id=str(uuid.uuid4()), role="buffer") as heartbeats:
            yield SynchronizerHeartbeat(heartbeats.waits, heartbeats)


class Components:
    """All components of the process, created before anything connects."""

    def __init__(
        self, settings: BufferSettings, workers: asyncio.TaskGroup, waits: WaitRegistry
    ) -> None:
        self.waits = waits
        dsn = settings.postgres_dsn.get_secret_value()
        idle_seconds = settings.idle_transaction_seconds + settings.priority_seconds
        self.engine = async_engine(
            dsn, SCHEMA, pool_size=POOL_SIZE, idle_transaction_seconds=idle_seconds
        )
        self.probed = async_engine(dsn, SCHEMA, pool_size=1, max_overflow=0)
        self.database = BufferDatabase(self.engine)
        self.listener = Listener(dsn, CHANNEL)
        self.poller = LongPoller(self.listener)
        self.broker = LenientClient()
        self.stream = RunStream(self.broker, settings.stream_max_bytes, settings.stream_replicas)
        policy = TenantPolicy.from_settings(
            settings, is_secured=Credentials.from_environment().is_on
        )
        logger.info("files, addresses and functions open to tenants", extra=policy.described())
        memory_bytes = settings.function_memory_bytes
        self.sink = ExperienceSinkWriter(database=self.database, policy=policy)
        self.functions = FunctionRunner(settings.advantage_seconds, memory_bytes, policy)
        self.priorities = FunctionRunner(settings.priority_seconds, memory_bytes, policy)
        self.quotas = BufferQuotas.from_settings(settings)
        self.ingest = Ingest(
            database=self.database,
            stream=self.stream,
            result_writer=ResultWriter(settings.segment_max_rows, settings.segment_max_bytes),
            quotas=self.quotas,
            fetch_messages=settings.fetch_messages,
            bound=asyncio.Event(),
            waits=waits,
            plan_version_waits=PlanVersionWaits(waits),
        )
        self.pipeline = ExperiencePipeline(
            database=self.database, listener=self.listener, functions=self.functions, waits=waits
        )
        self.jobs = BackgroundJobs(workers=workers, on_over=self.listener.wake_all, waits=waits)
        self.library = TasksetLibrary(
            database=self.database,
            jobs=self.jobs,
            policy=policy,
            limits=PipelineLimits(
                call_seconds=settings.advantage_seconds, memory_bytes=memory_bytes
            ),
        )
        self.features = FeatureLibrary(database=self.database, jobs=self.jobs)
        self.images = SubmittedImages()

    def loops(self) -> dict[LoopKind, dict[str, Callable[[], Awaitable[None]]]]:
        """Returns the loops of the process by name; each runs until it is cancelled."""
        queue_depths = QueueDepthMetrics(self.database, self.stream)
        return {
            LoopKind.DATA_PATH: {
                "ingest": self.ingest.run_ingest,
                "pipeline": self.pipeline.run_pipeline,
                FEEDBACK_TIMEOUTS: partial(run_feedback_timeouts, self.database, self.waits),
                STRAGGLER_CUTOFF: partial(run_straggler_cutoff, self.database, self.waits),
            },
            LoopKind.UPKEEP: {
                "maintenance": partial(run_maintenance, self.database),
                "queue depths": queue_depths.run_metrics,
                "experience sink": self.sink.run_writer,
                "retention": partial(run_retention, self.database, self.listener),
            },
        }

    @property
    def servicers(self) -> list[Servicer]:
        """The gRPC services: BufferService, QueryService and TasksetService."""
        buffer = BufferServicer(
            database=self.database,
            poller=self.poller,
            library=self.library,
            features=self.features,
            composer=BatchComposer(decode_sample, self.priorities),
            functions=self.functions,
            priorities=self.priorities,
            stream=self.stream,
            uploads=UploadMemoryBudget(of_tenants=self.quotas.upload_memory),
            quotas=self.quotas,
            sinks=self.sink,
            images=self.images,
        )
        queries = QueryServicer(database=self.database)
        tasksets = TasksetServicer(self.database)
        return [
            Servicer(name=SERVICE, add=add_BufferServiceServicer_to_server, implementation=buffer),
            Servicer(name=QUERIES, add=add_QueryServiceServicer_to_server, implementation=queries),
            Servicer(
                name=TASKSETS, add=add_TasksetServiceServicer_to_server, implementation=tasksets
            ),
        ]


async def run_buffer(settings: BufferSettings, stop: asyncio.Event) -> None:
    """Serves until told to stop: live at once, ready when database and broker are available."""
    async with (
        asyncio.TaskGroup() as workers,
        synchronizer_heartbeat(settings.synchronizer) as member,
    ):
        parts = Components(settings, workers, member.waits)
        async with serve(settings, parts.servicers) as server:
            member.set_address(server.address)
            needs = BufferReadiness(
                health=server.health, ingest=parts.ingest, stream=parts.stream, waits=parts.waits
            )
            keeper = LoopKeeper(waits=parts.waits, report=server.health.set_loop)
            working = workers.create_task(_work(settings, parts, needs, keeper))
            await stop.wait()
            parts.poller.stop_polling()
        parts.jobs.cancel_jobs()
        working.cancel()


async def _work(
    settings: BufferSettings, parts: Components, needs: BufferReadiness, keeper: LoopKeeper
) -> None:
    """Connects, then runs the loops until cancelled."""
    async with _released(parts):
        with _starting(settings, parts, "database"):
            await _prepare(settings)
        parts.database.open()
        async with _broker(settings, parts), parts.listener:
            with parts.waits.waiting(for_="database", reason="to start: it must notify"):
                await parts.listener.wait_connected()
            # Objects loaded by now stay for good: collecting over them would pause the process.
            gc.freeze()
            gc.set_threshold(GC_THRESHOLD)
            async with asyncio.TaskGroup() as tasks:
                for kind, loops in parts.loops().items():
                    for name, loop in loops.items():
                        tasks.create_task(keeper.keep_running(name, loop, kind), name=name)
                await parts.ingest.bound.wait()
                report = partial(report_health, parts.probed, needs, asyncio.Event())
                await keeper.keep_running("health", report)


@contextlib.asynccontextmanager
async def _broker(settings: BufferSettings, parts: Components) -> AsyncIterator[None]:
    url = settings.nats_url.get_secret_value()
    async with contextlib.AsyncExitStack() as stack:
        with _starting(settings, parts, "broker"):
            await stack.enter_async_context(connect(parts.broker, url, settings.connect_seconds))
        yield


def _starting(
    settings: BufferSettings, parts: Components, needed: str
) -> contextlib.AbstractContextManager[None]:
    return parts.waits.waiting(
        for_=needed, reason="to start: it must answer", deadline_seconds=settings.connect_seconds
    )


@contextlib.asynccontextmanager
async def _released(parts: Components) -> AsyncIterator[None]:
    try:
        async with parts.functions, parts.priorities:
            yield
    finally:
        await parts.images.kill()
        await parts.engine.dispose()
        await parts.probed.dispose()


async def _prepare(settings: BufferSettings) -> None:
    """Waits for the database, then upgrades or checks its schema."""
    dsn = settings.postgres_dsn.get_secret_value()
    await wait_until_up(dsn, settings.connect_seconds)
    prepare = MIGRATIONS.upgrade if settings.migrate_on_start else MIGRATIONS.check_newest
    await asyncio.to_thread(prepare, dsn)


async def migrate(settings: MigrationSettings, stop: asyncio.Event) -> None:
    """Upgrades the schema to the newest revision and returns."""
    dsn = settings.postgres_dsn.get_secret_value()
    if await wait_until_up(dsn, settings.connect_seconds, stop):
        await asyncio.to_thread(MIGRATIONS.upgrade, dsn)


def main() -> int:
    """Serves, or migrates if the first argument says so; returns the exit code."""
    match sys.argv[1:]:
        case []:
            set_mmap_threshold()
            return run_service("buffer", BufferSettings, run_buffer)
        case ["migrate"]:
            return run_service("buffer", MigrationSettings, migrate)
        case _:
            sys.stderr.write("usage: python -m services.buffer [migrate]\n")
            return 2


if __name__ == "__main__":
    sys.exit(main())
