"""Puts together what works on one stage."""

from concurrent.futures import Executor
from dataclasses import dataclass

from services.explorer.buffer_client import BufferClient
from services.explorer.engines import RunningEngine
from services.explorer.feed import Feed
from services.explorer.gate import WeightGate
from services.explorer.retry import persist
from services.explorer.runner import Runner
from services.explorer.settings import ExplorerSettings
from services.explorer.stage_work import Bounds, StageWork
from services.explorer.status import Status
from services.explorer.synchronizer_client import Published
from services.explorer.unconfirmed import Unconfirmed
from services.explorer.weights import PublishedWeights
from services.explorer.workbench import Workbench
from trinity.config.plan import StagePlan
from trinity.types import StageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StageJob:
    """A stage to work on, with the engine it runs on."""

    key: StageKey
    plan: StagePlan
    seed: int
    engine: RunningEngine
    feed: Feed[Published]


class StageSetup:
    """Opens stages; holds what all of them share."""

    def __init__(
        self,
        *,
        settings: ExplorerSettings,
        buffer: BufferClient,
        unconfirmed: Unconfirmed,
        threads: Executor,
        status: Status,
    ) -> None:
        self._settings = settings
        self._buffer = buffer
        self._unconfirmed = unconfirmed
        self._threads = threads
        self._status = status

    async def open(self, job: StageJob) -> StageWork:
        """Make the stage known to the buffer and get ready to work on it.

        Raises: UserError when the plan names something that is not there; PreconditionFailed when
        the buffer cannot read a taskset.
        """
        runner = self._runner(job)
        gate = self._gate(job)
        await persist(
            lambda: self._buffer.open_stage(job.key, job.plan.model_dump_json(), job.seed),
            status=self._status,
            waits_for="buffer",
            purpose="open the stage",
        )
        return StageWork(
            key=job.key,
            bounds=self._bounds(job.plan),
            buffer=self._buffer,
            runner=runner,
            gate=gate,
            unconfirmed=self._unconfirmed,
            status=self._status,
        )

    def _runner(self, job: StageJob) -> Runner:
        workbench = Workbench(
            plan=job.plan,
            seed=job.seed,
            engine=job.engine.engine,
            tokenizer=job.engine.tokenizer,
        )
        return Runner(
            workbench=workbench,
            engine=job.engine.engine,
            timeout_seconds=job.plan.config.explorer.max_timeout,
            threads=self._threads,
        )

    def _gate(self, job: StageJob) -> WeightGate:
        def published() -> tuple[PublishedWeights, ...]:
            return job.feed.current.weights if job.feed.current else ()

        gate = WeightGate(load=job.engine.loader.load, published=published, status=self._status)
        job.feed.on_change(gate.notice)
        return gate

    def _bounds(self, plan: StagePlan) -> Bounds:
        """Asynchronous runs mostly wait for the engine, so each runner takes many."""
        explorer = plan.config.explorer
        num_runners = explorer.runner_per_model * explorer.rollout_model.engine_num
        return Bounds(
            max_runs=num_runners * self._settings.runs_per_runner,
            max_unconfirmed=self._settings.max_unconfirmed,
            runs_per_assignment=plan.algorithm.repeat_times,
            max_attempts=explorer.max_retry_times + 1,
            lease_seconds=self._settings.lease_seconds,
        )
