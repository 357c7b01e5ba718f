"""The explorer process: its parts, its choice of experiments, its readiness and its shutdown."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.explorer.clients import buffer
from services.explorer.clients.buffer import ExplorerBufferClient
from services.explorer.clients.synchronizer import (
    ExplorerExperimentState,
    ExplorerSynchronizerClient,
)
from services.explorer.clients.watch_feed import WatchFeed, iterate_until_deadline
from services.explorer.control.experiment import ExperimentRunner
from services.explorer.control.stage import RolloutStageFactory
from services.explorer.delivery.outbox import CommitReportWatcher, Outbox
from services.explorer.delivery.publisher import NatsBroker, ResultPublisher
from services.explorer.engine.hosts import EngineHosts
from services.explorer.engines import EngineManager, StartEngine
from services.explorer.rollout.workflow_execution import LoopWatchdog
from services.explorer.settings import ExplorerSettings
from services.explorer.telemetry import RolloutCounters, register_gauges
from trinity.api.v1 import explorer_pb2 as pb
from trinity.api.v1.explorer_pb2_grpc import (
    ExplorerServiceServicer,
    add_ExplorerServiceServicer_to_server,
)
from trinity.api.v1.hosts_pb2 import HostMessage, LeaderMessage
from trinity.errors import PreconditionFailed, RpcError
from trinity.runtime.loops import LoopKeeper, LoopKind
from trinity.runtime.presence import Heartbeats
from trinity.runtime.retry import RetryPolicy
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.health import Health
from trinity.runtime.rpc.server import RunningServer, Servicer, serve
from trinity.runtime.security.credentials import Credentials
from trinity.runtime.security.worker_tenant import worker_tenant
from trinity.runtime.threads import DaemonThreads
from trinity.types import StageKey

logger = logging.getLogger(__name__)

IDLE = "idle"
READINESS_SECONDS = 0.5
WATCH_SECONDS = 600.0
SERVICE = "trinity.api.v1.ExplorerService"
MAX_THREADS = 64
"""Blocking workflows that run at a time; more of them wait their turn."""
FLUSH_SECONDS = 3.0
RELEASE_SECONDS = 1.0


class ExperimentScheduler:
    """Runs one experiment at a time, the oldest of those with the fewest explorers.

    Each runs until it is over or `stop_taking_work` is called.
    """

    def __init__(
        self,
        *,
        synchronizer: ExplorerSynchronizerClient,
        experiments: WatchFeed[tuple[ExplorerExperimentState, ...]],
        engines: EngineManager,
        stages: RolloutStageFactory,
        outbox: Outbox,
        heartbeats: Heartbeats,
    ) -> None:
        self._synchronizer = synchronizer
        self._experiments = experiments
        self._engines = engines
        self._stages = stages
        self._outbox = outbox
        self._heartbeats = heartbeats
        self._runner: ExperimentRunner | None = None
        self._stopping = False

    @property
    def key(self) -> StageKey | None:
        """The stage in which leases are held, if any."""
        runner = self._runner
        return runner.key if runner is not None and runner.holds_leases else None

    async def schedule_experiments(self) -> None:
        """Runs until cancelled, or until `stop_taking_work` was called and runs are over."""
        seen: tuple[ExplorerExperimentState, ...] | None = None
        while not self._stopping:
            self._heartbeats.set_activity(IDLE)
            seen = await self._next_state(seen)
            await self._run_experiment(
                await self._choose_experiment([state for state in seen if _has_work(state)])
            )

    def stop_taking_work(self) -> bool:
        """Stops taking work; returns whether there are runs that may still end."""
        self._stopping = True
        return self._runner.stop_taking_work() if self._runner is not None else False

    async def _next_state(
        self, seen: tuple[ExplorerExperimentState, ...] | None
    ) -> tuple[ExplorerExperimentState, ...]:
        """Waits until the experiments differ from `seen` and one of them has work."""
        return await self._experiments.wait_for(
            lambda now: now is not seen and any(map(_has_work, now))
        )

    async def _choose_experiment(
        self, waiting: Sequence[ExplorerExperimentState]
    ) -> ExplorerExperimentState:
        """Picks the experiment with the fewest other explorers, so that explorers spread out."""
        if len(waiting) == 1:
            return waiting[0]
        try:
            others = await self._synchronizer.count_other_explorers(self._heartbeats.member)
        except RpcError as error:
            logger.info("other explorers cannot be seen", extra={"reason": str(error)})
            return waiting[0]
        return min(waiting, key=lambda experiment: others[experiment.id])

    async def _run_experiment(self, experiment: ExplorerExperimentState) -> None:
        """Works on the experiment; unless taking work was stopped, drops its pending results."""
        self._heartbeats.set_work(experiment.id, "")
        self._runner = ExperimentRunner(
            experiment=experiment,
            synchronizer=self._synchronizer,
            engines=self._engines,
            stages=self._stages,
            heartbeats=self._heartbeats,
        )
        await self._runner.run_experiment()
        self._heartbeats.set_work("", "")
        if not self._stopping:
            self._outbox.drop_stage(self._runner.key)
            self._runner = None


def _has_work(experiment: ExplorerExperimentState) -> bool:
    return experiment.is_running and any(not stage.is_finished for stage in experiment.stages)


async def update_readiness(health: Health, needs: Mapping[str, Callable[[], bool]]) -> None:
    """Reports ready while all dependencies are usable, otherwise names the unusable ones."""
    while True:
        missing = [name for name, is_usable in needs.items() if not is_usable()]
        await health.set_ready(not missing, f"not usable: {', '.join(missing)}")
        await asyncio.sleep(READINESS_SECONDS)


async def watch_health(channel: grpc.aio.Channel, service: str) -> AsyncIterator[bool]:
    """Streams the readiness of a service, as it reports it."""
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service=service)
    async for response in iterate_until_deadline(
        service, stub.Watch(request, timeout=WATCH_SECONDS)
    ):
        yield response.status == health_pb2.HealthCheckResponse.SERVING


async def connect_broker(broker: NatsBroker, retry_policy: RetryPolicy) -> None:
    """Connects for the first time; later the client reconnects by itself."""
    await retry_policy.retry(broker.connect, waits_for="broker", purpose="connect")


class ExplorerServicer(ExplorerServiceServicer):
    """Answers requests from memory; hands streams of other hosts to the engine."""

    def __init__(
        self,
        heartbeats: Heartbeats,
        counters: RolloutCounters,
        outbox: Outbox,
        hosts: EngineHosts | None = None,
    ) -> None:
        self._heartbeats = heartbeats
        self._counters = counters
        self._outbox = outbox
        self._hosts = hosts

    async def JoinEngine(
        self,
        request_iterator: AsyncIterator[HostMessage],
        context: "grpc.aio.ServicerContext[object, object]",  # noqa: ARG002
    ) -> AsyncIterator[LeaderMessage]:
        """Serves the stream of another host of the engine.

        Raises: PreconditionFailed if this explorer is not the leader of a multi-host engine.
        """
        if self._hosts is None:
            await anext(request_iterator, None)  # a token of another tenant is refused here
            raise PreconditionFailed(
                "this explorer leads no engine over several hosts: give it "
                "TRINITY_EXPLORER_NUM_HOSTS, and no TRINITY_EXPLORER_HOST"
            )
        async for response in self._hosts.group.serve(request_iterator):
            yield response

    async def GetExplorerStatus(
        self,
        request: pb.GetExplorerStatusRequest,  # noqa: ARG002 empty by contract
        context: "grpc.aio.ServicerContext[object, object]",  # noqa: ARG002
    ) -> pb.GetExplorerStatusResponse:
        """Returns the current status of the explorer."""
        member = self._heartbeats.member
        return pb.GetExplorerStatusResponse(
            explorer_id=member.id,
            experiment_id=member.experiment_id,
            stage=member.stage,
            activity=member.activity,
            loaded_version=member.version,
            num_running=self._counters.num_running,
            num_unconfirmed=len(self._outbox),
            num_generated_tokens=self._counters.num_generated_tokens,
        )


class Explorer:
    """All parts of one explorer process."""

    def __init__(
        self,
        *,
        settings: ExplorerSettings,
        start_engine: StartEngine,
        broker: NatsBroker,
        hosts: EngineHosts | None = None,
    ) -> None:
        self._settings = settings
        self._hosts = hosts
        self._broker = broker
        self._id = str(uuid.uuid4())
        self._counters = RolloutCounters()
        self._outbox = Outbox(time.monotonic)
        self._buffer_channel = open_channel(settings.buffer)
        self._synchronizer_channel = open_channel(settings.synchronizer)
        self._buffer = ExplorerBufferClient(self._buffer_channel, settings.lease_holder or self._id)
        tenant = worker_tenant(
            "explorer",
            settings.tenant,
            Credentials.from_environment(),
            serves_all=settings.all_tenants,
        )
        self._synchronizer = ExplorerSynchronizerClient(self._synchronizer_channel, tenant)
        self._heartbeats = Heartbeats(self._synchronizer.stub, member_id=self._id, role="explorer")
        self._retry_policy = RetryPolicy(self._heartbeats.waits)
        self._engines = EngineManager(start=start_engine, waits=self._heartbeats.waits, hosts=hosts)
        self._experiments: WatchFeed[tuple[ExplorerExperimentState, ...]] = WatchFeed(
            self._synchronizer.watch_experiments,
            waits_for="synchronizer",
            purpose="follow what runs",
            retry_policy=self._retry_policy,
        )
        self._buffer_health: WatchFeed[bool] = WatchFeed(
            lambda: watch_health(self._buffer_channel, buffer.SERVICE),
            waits_for="buffer",
            purpose="follow its health",
            retry_policy=self._retry_policy,
        )
        self._scheduler = self._make_scheduler()
        register_gauges(self._counters, self._outbox)

    def _make_scheduler(self) -> ExperimentScheduler:
        stages = RolloutStageFactory(
            settings=self._settings,
            buffer=self._buffer,
            synchronizer=self._synchronizer,
            outbox=self._outbox,
            threads=DaemonThreads(name="workflow", max_threads=MAX_THREADS),
            heartbeats=self._heartbeats,
            counters=self._counters,
        )
        return ExperimentScheduler(
            synchronizer=self._synchronizer,
            experiments=self._experiments,
            engines=self._engines,
            stages=stages,
            outbox=self._outbox,
            heartbeats=self._heartbeats,
        )

    async def run_until(self, stop: asyncio.Event) -> None:
        """Serves and works until `stop` is set, then shuts down in order."""
        servicer = Servicer(
            name=SERVICE,
            add=add_ExplorerServiceServicer_to_server,
            implementation=ExplorerServicer(
                self._heartbeats, self._counters, self._outbox, self._hosts
            ),
        )
        try:
            async with self._broker, serve(self._settings, [servicer]) as server:
                self._heartbeats.set_address(server.address)
                async with self._heartbeats, LoopWatchdog():
                    await self._serve(server, stop)
        finally:
            await self._close()

    async def _serve(self, server: RunningServer, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(coroutine) for coroutine in self._background_tasks(server)
            ]
            scheduling = tasks.create_task(self._scheduler.schedule_experiments())
            following = tasks.create_task(self._follow_hosts())
            await stop.wait()
            following.cancel()  # hosts may stop before this one; calls still notice it
            await server.health.shut_down()
            if self._scheduler.stop_taking_work():
                await asyncio.wait([scheduling], timeout=self._settings.drain_seconds)
            scheduling.cancel()
            await asyncio.wait([scheduling])
            await self._flush()
            for task in background:
                task.cancel()

    async def _follow_hosts(self) -> None:
        """Ends the process with the engine when another host of it is lost."""
        if self._hosts is not None:
            await self._hosts.follow_engine(self._heartbeats.set_note)

    def _background_tasks(self, server: RunningServer) -> list[Coroutine[None, None, None]]:
        publisher = ResultPublisher(
            producer=self._id, outbox=self._outbox, broker=self._broker, blobs=self._buffer
        )
        keeper = LoopKeeper(waits=self._heartbeats.waits, report=server.health.set_loop)
        commits = CommitReportWatcher(producer=self._id, buffer=self._buffer, outbox=self._outbox)
        return [
            connect_broker(self._broker, self._retry_policy),
            publisher.publish_results(),
            keeper.keep_running("reports of commits", commits.follow_reports, LoopKind.DATA_PATH),
            self._experiments.follow_stream(),
            self._buffer_health.follow_stream(),
            keeper.keep_running(
                "readiness", lambda: update_readiness(server.health, self._needs())
            ),
        ]

    def _needs(self) -> dict[str, Callable[[], bool]]:
        """Returns what must be usable for the process to be ready, by name."""
        return {
            "engine": lambda: self._engines.is_running,
            "synchronizer": lambda: self._experiments.is_open,
            "buffer": lambda: self._buffer_health.is_open and bool(self._buffer_health.current),
            "broker": lambda: self._broker.is_connected,
        }

    async def _flush(self) -> None:
        """Sends the remaining results and releases the leases, as far as time permits."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._outbox.wait_all_sent()
        except TimeoutError:
            logger.warning("results were not sent", extra={"results": len(self._outbox)})
        if (key := self._scheduler.key) is None:
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._buffer.release_leases(key)
        except (RpcError, TimeoutError) as error:
            logger.warning("leases were not released", extra={"reason": str(error)})

    async def _close(self) -> None:
        self._outbox.end_spans()
        await self._engines.close_engines()
        await self._buffer_channel.close()
        await self._synchronizer_channel.close()
