"""Assembles the parts that work on a stage."""

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from services.explorer.clients.buffer import ExplorerBufferClient
from services.explorer.clients.synchronizer import ExplorerSynchronizerClient, WatchedExperiment
from services.explorer.clients.watch_feed import WatchFeed
from services.explorer.delivery.outbox import Outbox
from services.explorer.engine.interface import EngineDied, EngineOwnDevice, EngineTurns
from services.explorer.engine.weight_transfer import EngineWeightReceiver
from services.explorer.engines import LoadedStageModels
from services.explorer.media import MediaStore
from services.explorer.openai_api.run_turns import StageTurns
from services.explorer.rollout.runner import AttemptRunner, DeadlineTasks, RunTimeLimit
from services.explorer.rollout.scheduler import (
    IdleTimeout,
    LongRunReporter,
    RolloutLimits,
    RunExecutor,
    StageScheduler,
)
from services.explorer.rollout.user_process_pool import UserProcessPool
from services.explorer.rollout.weight_gate import DamageChannel, WeightGate
from services.explorer.rollout.workflow_factory import WorkflowFactory
from services.explorer.serving.clients import ClientServer, ClientSessions, lender
from services.explorer.serving.work import (
    ServingRunner,
    access_policy,
    build_serving_runner,
    server_parts,
)
from services.explorer.settings import ExplorerSettings
from services.explorer.telemetry import (
    EXPLORING,
    AbandonedCallReporter,
    CountingGenerator,
    ExploreStepLog,
    RolloutCounters,
    RunnerNumbers,
    load_span,
)
from services.explorer.types import LostWeights, WeightsVersion
from trinity.algorithm.units import COMPARES_NO_RUNS
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.sizing.volume import runs_per_runner
from trinity.errors import RolloutStageFailed, RpcError, UserError
from trinity.rewards.reward import REWARD_POOL
from trinity.rft.checks.parts import check_parts
from trinity.runtime.presence import Heartbeats
from trinity.runtime.retry import RetryPolicy, deadline
from trinity.runtime.threads import DaemonThreads, in_daemon_thread
from trinity.types import StageKey
from trinity.weights.offer import TransferTimeouts

USER_FACING = (RolloutStageFailed, UserError, RpcError)
MAX_USER_PROCESSES = 64
USER_PROCESSES_PER_CPU = 8
"""Processes of users' code at a time; further runs wait for one that is free. One that has loaded
torch takes 360 MB and seconds of a CPU to start: 64 of them fill a laptop."""


def user_message(error: BaseException) -> str | None:
    """Returns the text to show to users; None when any of the errors is unexpected."""
    leaves = list(leaves_of(error))
    if not all(isinstance(leaf, USER_FACING) for leaf in leaves):
        return None
    return str(leaves[0])


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yields the errors in a group of them, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves_of(inner)
    else:
        yield error


class WorkflowEnvironment:
    """Overlays a stage's variables on the environment in which the process was started."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def set(self, variables: Mapping[str, str | bool | int | float]) -> None:
        """Sets the variables, after undoing those of the previous call."""
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {name: os.environ.get(name) for name in variables}
        os.environ.update({name: str(value) for name, value in variables.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class StageJob:
    """A stage to work on, with the models it runs on."""

    key: StageKey
    plan: StagePlan
    seed: int
    models: LoadedStageModels
    feed: WatchFeed[WatchedExperiment]
    turns: EngineTurns = field(default_factory=EngineOwnDevice)
    """When the engine may use its device."""
    label: str = ""
    """Name of the experiment."""
    fixed_weights: WeightsVersion | None = None
    """The only weights of a stage without a trainer."""


class StageDamageChannel:
    """Reports damaged weights of a stage by way of the synchronizer."""

    def __init__(
        self,
        *,
        key: StageKey,
        synchronizer: ExplorerSynchronizerClient,
        feed: WatchFeed[WatchedExperiment],
    ) -> None:
        self._key = key
        self._synchronizer = synchronizer
        self._feed = feed

    def lost(self) -> tuple[LostWeights, ...]:
        """Returns the weights that the trainer cannot replace."""
        return self._feed.current.lost if self._feed.current else ()

    async def report(self, weights: WeightsVersion, reason: str) -> None:
        """Reports weights.

        Raises: RpcError.
        """
        await self._synchronizer.report_damage(
            self._key.experiment_id, self._key.stage, weights, reason
        )


class RolloutStageFactory:
    """Opens stages, and holds the parts that all of them share."""

    def __init__(
        self,
        *,
        settings: ExplorerSettings,
        buffer: ExplorerBufferClient,
        synchronizer: ExplorerSynchronizerClient,
        outbox: Outbox,
        threads: DaemonThreads,
        heartbeats: Heartbeats,
        counters: RolloutCounters,
    ) -> None:
        self._settings = settings
        self._buffer = buffer
        self._synchronizer = synchronizer
        self._outbox = outbox
        self._threads = threads
        self._heartbeats = heartbeats
        self._counters = counters
        self._tasks = DeadlineTasks()
        self._environment = WorkflowEnvironment()

    async def check_stage_parts(self, plan: StagePlan) -> None:
        """Checks that every part named by the stage exists, before anything heavy is started.

        The parts' files are imported in a thread: that may take seconds. Raises: UserError.
        """
        await in_daemon_thread(lambda: check_parts([plan]))

    @asynccontextmanager
    async def open_stage(self, job: StageJob) -> AsyncIterator[StageScheduler]:
        """Yields the stage ready for work; its environment variables are set until the block ends.

        Raises: the errors of `_open`.
        """
        self._environment.set(job.plan.config.explorer.env_vars)
        processes = _user_processes(job.plan)
        has_died = False
        try:
            work, clients = await self._open(job, processes)
            async with clients:
                yield work
        except BaseException as error:
            has_died = any(isinstance(leaf, EngineDied) for leaf in leaves_of(error))
            raise
        finally:
            self._environment.set({})
            if job.turns.has_device and not has_died:  # else it would be waited for once more
                await job.turns.give_back()
            if processes is not None:
                await processes.close()

    async def _open(
        self, job: StageJob, processes: UserProcessPool | None
    ) -> tuple[StageScheduler, AbstractAsyncContextManager[None]]:
        """Registers the stage with the buffer; prepares the work on it, and the clients' address.

        Raises: UserError when the plan names something that does not exist; PreconditionFailed when
        the buffer cannot read a taskset; RolloutStageFailed when it takes too long.
        """
        retry_policy = RetryPolicy(
            self._heartbeats.waits, job.plan.config.synchronizer.sync_timeout
        )
        gate = self._gate(job, retry_policy)
        limit = RunTimeLimit(job.plan.config.explorer)
        long_runs = LongRunReporter(waits=self._heartbeats.waits, limit=limit)
        steps = ExploreStepLog(job.plan.config.buffer.batch_size)
        factory = await self._create_factory(job, processes)
        executor = self._executor(job, gate, long_runs, limit, factory, steps)
        await self._register(job, retry_policy)
        takes_clients = any(taskset.is_of_clients for taskset in job.plan.tasksets)
        clients = self._clients(job, gate) if takes_clients else nullcontext()
        work = StageScheduler(
            key=job.key,
            limits=self._limits(job.plan),
            buffer=self._buffer,
            executor=executor,
            long_runs=long_runs,
            gate=gate,
            outbox=self._outbox,
            counters=self._counters,
            retry_policy=retry_policy,
            idle_timeout=self._idle_timeout(job.plan, retry_policy),
            steps=steps,
        )
        return work, clients

    @asynccontextmanager
    async def _clients(self, job: StageJob, gate: WeightGate) -> AsyncIterator[None]:
        """Serves clients until the block ends."""
        plan, policy = job.plan, job.models.policy
        generator = CountingGenerator(policy.engine, self._counters)

        def published() -> tuple[WeightsVersion, ...]:
            return job.feed.current.weights if job.feed.current else ()

        access = access_policy(plan, job.key.tenant)
        advantage = plan.algorithm.advantage_fn
        server = ClientServer(
            sessions=ClientSessions(
                key=job.key,
                seed=job.seed,
                stage=StageTurns(buffer=self._buffer, outbox=self._outbox),
            ),
            compares="" if advantage in COMPARES_NO_RUNS else advantage,
            is_ready=lambda: gate.loaded is not None,
            **server_parts(
                plan,
                job.label,
                policy,
                lender(gate, generator, published),
                access,
                MediaStore(self._buffer, job.key.tenant),
            ),
        )
        async with server.open(self._settings.drain_seconds):
            self._heartbeats.set_activity(f"{EXPLORING}, clients at {server.address}")
            yield

    async def _register(self, job: StageJob, retry_policy: RetryPolicy) -> None:
        """Opens the stage at the buffer, and releases the leases of an earlier process in it."""
        await retry_policy.retry(
            lambda: self._buffer.open_stage(job.key, job.plan.model_dump_json(), job.seed),
            waits_for="buffer",
            purpose="open the stage",
        )
        if self._settings.lease_holder:
            await retry_policy.retry(
                lambda: self._buffer.release_leases(job.key),
                waits_for="buffer",
                purpose="give back the leases from before this start",
            )

    def prepare_serving(self, job: StageJob) -> ServingRunner:
        """Prepares to serve the stage's model, which needs no buffer."""
        return build_serving_runner(
            plan=job.plan,
            tenant=job.key.tenant,
            label=job.label,
            models=job.models,
            heartbeats=self._heartbeats,
            drain_seconds=self._settings.drain_seconds,
        )

    def _executor(
        self,
        job: StageJob,
        gate: WeightGate,
        long_runs: LongRunReporter,
        limit: RunTimeLimit,
        factory: WorkflowFactory,
        steps: ExploreStepLog,
    ) -> RunExecutor:
        runner = AttemptRunner(
            factory=factory,
            engine=job.models.policy.engine,
            limit=limit,
            threads=self._threads,
            tasks=self._tasks,
            auxiliary=[model.engine for model in job.models.auxiliary],
            clock=job.turns.clock,
        )
        return RunExecutor(
            key=job.key,
            max_attempts=_max_attempts(job.plan),
            runner=runner,
            gate=gate,
            outbox=self._outbox,
            abandoned_calls=AbandonedCallReporter(
                heartbeats=self._heartbeats, sources=(self._threads, REWARD_POOL, self._tasks)
            ),
            long_runs=long_runs,
            runners=RunnerNumbers(_num_runners(job.plan)),
            steps=steps,
        )

    async def _create_factory(
        self, job: StageJob, processes: UserProcessPool | None
    ) -> WorkflowFactory:
        """Makes it in a thread: constructors of the stage's rewards may take long."""
        policy = job.models.policy
        make = partial(
            WorkflowFactory,
            plan=job.plan,
            seed=job.seed,
            generator=CountingGenerator(policy.engine, self._counters),
            tokenizer=policy.tokenizer,
            api=policy.api,
            auxiliary=job.models.auxiliary,
            processes=processes,
            turns=StageTurns(buffer=self._buffer, outbox=self._outbox),
            media=MediaStore(self._buffer, job.key.tenant),
        )
        seconds = job.plan.config.synchronizer.sync_timeout
        error = RolloutStageFailed(
            f"the rewards of stage `{job.plan.name}` were not constructed in {seconds:g} s "
            "(`synchronizer.sync_timeout`): make their `__init__` faster"
        )
        async with deadline(seconds, error):
            factory = await in_daemon_thread(make)
            await factory.load_isolated_parts()
            return factory

    def _gate(self, job: StageJob, retry_policy: RetryPolicy) -> WeightGate:
        def published() -> tuple[WeightsVersion, ...]:
            if job.fixed_weights is not None:
                return (job.fixed_weights,)
            return job.feed.current.weights if job.feed.current else ()

        transfers = EngineWeightReceiver(
            engine=job.models.policy.engine,
            waits=self._heartbeats.waits,
            limits=TransferTimeouts.within(job.plan.config.synchronizer.sync_timeout),
        )

        async def load(weights: WeightsVersion) -> None:
            with load_span(job.key, weights):
                try:
                    await job.models.loader.load_published(weights, transfers)
                finally:
                    transfers.clear_wait()

        gate = WeightGate(
            load=load,
            published=published,
            heartbeats=self._heartbeats,
            retry_policy=retry_policy,
            damage=self._damage_channel(job),
            turns=job.turns,
            keeps_requests=job.plan.keeps_requests,
        )
        job.feed.on_change(gate.on_weights_changed)
        return gate

    def _damage_channel(self, job: StageJob) -> DamageChannel | None:
        """Returns the channel to the stage's trainer, if it has one."""
        if job.fixed_weights is not None:
            return None
        return StageDamageChannel(key=job.key, synchronizer=self._synchronizer, feed=job.feed)

    def _idle_timeout(self, plan: StagePlan, retry_policy: RetryPolicy) -> IdleTimeout:
        """Waits for work at least as long as all attempts of a run or the trainer's wait for a
        batch may take: another explorer may hold the last work for that long."""
        attempts = plan.config.explorer.max_timeout * _max_attempts(plan)
        longest = max(retry_policy.seconds, attempts, plan.experience_buffer.max_read_timeout)
        return IdleTimeout(RetryPolicy(retry_policy.waits, longest))

    def _limits(self, plan: StagePlan) -> RolloutLimits:
        """Returns the limits.

        A run without offset is made with the same weights after any restart.
        """
        return RolloutLimits(
            max_runs=_num_runners(plan) * (self._settings.runs_per_runner or runs_per_runner(plan)),
            max_unconfirmed=self._settings.max_unconfirmed,
            runs_per_assignment=plan.algorithm.repeat_times,
            lease_seconds=self._settings.lease_seconds,
            requires_exact_version=not plan.is_asynchronous,
            cuts_stragglers=plan.num_droppable_tasks > 0,
        )


def _user_processes(plan: StagePlan) -> UserProcessPool | None:
    """Returns the processes of users' code: at most one for each run at a time."""
    if not plan.config.explorer.isolate_user_code:
        return None
    num_runs = _num_runners(plan) * runs_per_runner(plan)
    of_machine = USER_PROCESSES_PER_CPU * (os.cpu_count() or 1)
    return UserProcessPool(max_processes=min(num_runs, of_machine, MAX_USER_PROCESSES))


def _max_attempts(plan: StagePlan) -> int:
    return plan.config.explorer.max_retry_times + 1


def _num_runners(plan: StagePlan) -> int:
    explorer = plan.config.explorer
    return explorer.runner_per_model * explorer.rollout_model.engine_num
