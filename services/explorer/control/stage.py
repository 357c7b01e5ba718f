"""Environment variables of a stage's workflows, restored when it is over."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from services.explorer.clients.buffer import BufferClient
from services.explorer.clients.streams import Feed
from services.explorer.clients.synchronizer import Published
from services.explorer.counters import CountedGenerator, Counts, LostWatch
from services.explorer.delivery.outbox import Unconfirmed
from services.explorer.engine.weight_transfer import EngineTransfers
from services.explorer.engines import RunningEngine
from services.explorer.retry import Patience, StageFailed
from services.explorer.rollout.run import LongRuns, RunWork
from services.explorer.rollout.runner import BoundedTasks, Runner, TimeLimit
from services.explorer.rollout.scheduler import Bounds, Idleness, StageWork
from services.explorer.rollout.weight_gate import WeightGate
from services.explorer.rollout.workflow_factory import Workbench
from services.explorer.serving.setup import serve_work
from services.explorer.serving.work import ServeWork
from services.explorer.settings import ExplorerSettings
from services.explorer.telemetry import loading
from services.explorer.types import PublishedWeights
from trinity.config.plan.stage_plan import StagePlan
from trinity.launch.prepare import check_parts
from trinity.runtime.presence import Heartbeats
from trinity.runtime.threads import DaemonThreads, in_daemon_thread
from trinity.types import StageKey
from trinity.weights.offer import TransferTimeouts
from trinity.workflows.simple_workflow import REWARD_THREADS


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
    """A stage to work on, with the engine it runs on."""

    key: StageKey
    plan: StagePlan
    seed: int
    engine: RunningEngine
    feed: Feed[Published]
    label: str = ""
    """Name of the experiment."""
    given: PublishedWeights | None = None
    """The only weights of a stage without a trainer."""


class StageSetup:
    """Opens stages, and holds the parts that all of them share."""

    def __init__(
        self,
        *,
        settings: ExplorerSettings,
        buffer: BufferClient,
        unconfirmed: Unconfirmed,
        threads: DaemonThreads,
        beats: Heartbeats,
        counts: Counts,
    ) -> None:
        self._settings = settings
        self._buffer = buffer
        self._unconfirmed = unconfirmed
        self._threads = threads
        self._beats = beats
        self._counts = counts
        self._tasks = BoundedTasks()
        self._environment = WorkflowEnvironment()

    async def check(self, plan: StagePlan) -> None:
        """Checks that every part named by the stage exists, before anything heavy is started.

        The parts' files are imported in a thread: that may take seconds. Raises: UserError.
        """
        await in_daemon_thread(lambda: check_parts([plan]))

    @asynccontextmanager
    async def opened(self, job: StageJob) -> AsyncIterator[StageWork]:
        """Yields the stage ready for work; its environment variables are set until the block ends.

        Raises: the errors of `_open`.
        """
        self._environment.set(job.plan.config.explorer.env_vars)
        try:
            yield await self._open(job)
        finally:
            self._environment.set({})

    async def _open(self, job: StageJob) -> StageWork:
        """Registers the stage with the buffer and prepares the work on it.

        Raises: UserError when the plan names something that does not exist; PreconditionFailed when
        the buffer cannot read a taskset; StageFailed when it takes too long.
        """
        patience = Patience(self._beats.waits, job.plan.config.synchronizer.sync_timeout)
        gate = self._gate(job, patience)
        limit = TimeLimit(job.plan.config.explorer)
        long_runs = LongRuns(waits=self._beats.waits, limit=limit)
        runs = await self._runs(job, gate, long_runs, limit)
        await patience.persist(
            lambda: self._buffer.open_stage(job.key, job.plan.model_dump_json(), job.seed),
            waits_for="buffer",
            purpose="open the stage",
        )
        if self._settings.lease_holder:
            await patience.persist(
                lambda: self._buffer.release(job.key),
                waits_for="buffer",
                purpose="give back what was held before this start",
            )
        return StageWork(
            key=job.key,
            bounds=self._bounds(job.plan),
            buffer=self._buffer,
            runs=runs,
            long_runs=long_runs,
            gate=gate,
            unconfirmed=self._unconfirmed,
            counts=self._counts,
            patience=patience,
            idleness=self._idleness(job.plan, patience),
        )

    def serve(self, job: StageJob) -> ServeWork:
        """Prepares to serve the stage's model, which needs no buffer."""
        return serve_work(
            plan=job.plan,
            tenant=job.key.tenant,
            label=job.label,
            engine=job.engine,
            beats=self._beats,
            drain_seconds=self._settings.drain_seconds,
        )

    async def _runs(
        self, job: StageJob, gate: WeightGate, long_runs: LongRuns, limit: TimeLimit
    ) -> RunWork:
        workbench = await self._workbench(job)
        runner = Runner(
            workbench=workbench,
            engine=job.engine.engine,
            limit=limit,
            threads=self._threads,
            tasks=self._tasks,
            auxiliary=[model.engine for model in job.engine.auxiliary],
        )
        return RunWork(
            key=job.key,
            max_attempts=_max_attempts(job.plan),
            runner=runner,
            gate=gate,
            unconfirmed=self._unconfirmed,
            lost=LostWatch(beats=self._beats, of=(self._threads, REWARD_THREADS, self._tasks)),
            long_runs=long_runs,
        )

    async def _workbench(self, job: StageJob) -> Workbench:
        """Makes it in a thread: constructors of the stage's rewards may take long."""
        make = partial(
            Workbench,
            plan=job.plan,
            seed=job.seed,
            generator=CountedGenerator(job.engine.engine, self._counts),
            tokenizer=job.engine.tokenizer,
            api=job.engine.api,
            auxiliary=job.engine.auxiliary,
        )
        seconds = job.plan.config.synchronizer.sync_timeout
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await in_daemon_thread(make)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise StageFailed(
                f"the rewards of stage `{job.plan.name}` were not made in {seconds:g} s "
                "(`synchronizer.sync_timeout`): let their `__init__` take less"
            ) from error

    def _gate(self, job: StageJob, patience: Patience) -> WeightGate:
        def published() -> tuple[PublishedWeights, ...]:
            if job.given is not None:
                return (job.given,)
            return job.feed.current.weights if job.feed.current else ()

        transfers = EngineTransfers(
            engine=job.engine.engine,
            waits=self._beats.waits,
            limits=TransferTimeouts.within(job.plan.config.synchronizer.sync_timeout),
        )

        async def load(weights: PublishedWeights) -> None:
            with loading(job.key, weights):
                try:
                    await job.engine.loader.load(weights, transfers)
                finally:
                    transfers.over()

        gate = WeightGate(load=load, published=published, beats=self._beats, patience=patience)
        job.feed.on_change(gate.notice)
        return gate

    def _idleness(self, plan: StagePlan, patience: Patience) -> Idleness:
        """Waits for work at least as long as all attempts of a run or the trainer's wait for a
        batch may take: another explorer may hold the last work for that long."""
        attempts = plan.config.explorer.max_timeout * _max_attempts(plan)
        longest = max(patience.seconds, attempts, plan.experience_buffer.max_read_timeout)
        return Idleness(Patience(patience.waits, longest))

    def _bounds(self, plan: StagePlan) -> Bounds:
        """Returns the bounds; each runner takes many runs, which mostly wait for the engine.

        A run without offset is made with the same weights after any restart.
        """
        return Bounds(
            max_runs=_num_runners(plan) * self._settings.runs_per_runner,
            max_unconfirmed=self._settings.max_unconfirmed,
            runs_per_assignment=plan.algorithm.repeat_times,
            lease_seconds=self._settings.lease_seconds,
            trains_exactly=not plan.runs_ahead,
            is_cut_short=plan.num_spare_tasks > 0,
        )


def _max_attempts(plan: StagePlan) -> int:
    return plan.config.explorer.max_retry_times + 1


def _num_runners(plan: StagePlan) -> int:
    explorer = plan.config.explorer
    return explorer.runner_per_model * explorer.rollout_model.engine_num
