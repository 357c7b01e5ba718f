"""The explorer's part of one experiment: stage by stage, until it is over or cannot go on."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from services.explorer.clients.synchronizer import (
    ExplorerExperimentState,
    ExplorerStageState,
    ExplorerSynchronizerClient,
    WatchedExperiment,
)
from services.explorer.clients.watch_feed import WatchFeed
from services.explorer.control.stage import RolloutStageFactory, StageJob, user_message
from services.explorer.engine.interface import EngineOwnDevice, EngineTurns
from services.explorer.engine.turns import EngineSharedDevice, TurnSettings
from services.explorer.engines import EngineManager, LoadedStageModels
from services.explorer.rollout.scheduler import StageScheduler
from services.explorer.serving.work import ServingRunner
from services.explorer.telemetry import EXPLORING
from services.explorer.types import (
    EngineTurnState,
    StageCancelled,
    StageDrained,
    StageEnd,
    WeightsId,
    WeightsVersion,
    model_weights,
)
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.errors import NotFound, RolloutStageFailed, RpcError
from trinity.runtime.device_lock import ReportCounter, device_lock_path
from trinity.runtime.members import MemberPhase
from trinity.runtime.presence import Heartbeats
from trinity.runtime.retry import RetryPolicy
from trinity.types import StageKey

logger = logging.getLogger(__name__)

PLAN_TIMEOUT_SECONDS = 600.0
"""Deadline for reading the plan, which sets the deadline from then on."""


class ExperimentRunner:
    """Runs the explorer's stages of one start of an experiment; used once.

    The engine starts at once, while an earlier stage may still be training.
    """

    def __init__(
        self,
        *,
        experiment: ExplorerExperimentState,
        synchronizer: ExplorerSynchronizerClient,
        engines: EngineManager,
        stages: RolloutStageFactory,
        heartbeats: Heartbeats,
    ) -> None:
        self._experiment = experiment
        self._synchronizer = synchronizer
        self._engines = engines
        self._stages = stages
        self._heartbeats = heartbeats
        self._retry_policy = RetryPolicy(heartbeats.waits, PLAN_TIMEOUT_SECONDS)
        self._stage_name = next(stage.name for stage in experiment.stages if not stage.is_finished)
        self._work: StageScheduler | ServingRunner | None = None
        self._stopping = False
        self.holds_leases = False
        """True once work was requested; a stage that serves takes no leases."""

    @property
    def key(self) -> StageKey:
        """The stage in which leases are held."""
        return StageKey(
            tenant=self._experiment.tenant,
            experiment_id=self._experiment.id,
            stage=self._stage_name,
        )

    def stop_taking_work(self) -> bool:
        """Stops taking work; returns whether there are runs that may still end."""
        self._stopping = True
        if self._work is None:
            return False
        self._work.stop_taking_work()
        return True

    async def run_experiment(self) -> None:
        """Runs until the experiment has no more work, is over, was restarted, or has failed."""
        try:
            await self._follow()
        except Exception as error:  # an ExceptionGroup from the tasks below
            message = user_message(error)
            if message is None:
                raise
            await self._report_failed(message)

    async def _follow(self) -> None:
        plan = await self._retry_policy.retry(
            lambda: self._synchronizer.plan(self._experiment.id),
            waits_for="synchronizer",
            purpose="read the experiment's plan",
        )
        self._retry_policy = RetryPolicy(self._heartbeats.waits, _sync_timeout(plan))
        feed: WatchFeed[WatchedExperiment] = WatchFeed(
            lambda: self._synchronizer.watch_experiment(self._experiment.id),
            waits_for="synchronizer",
            purpose="follow the experiment",
            retry_policy=self._retry_policy,
        )
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(feed.follow_stream())
            working = tasks.create_task(self._run_stages(plan, feed))
            ended = tasks.create_task(feed.wait_for(lambda now: self._is_over(now.experiment)))
            await asyncio.wait((working, ended), return_when=asyncio.FIRST_COMPLETED)
            for task in (following, working, ended):
                task.cancel()

    async def _run_stages(self, plan: ExperimentPlan, feed: WatchFeed[WatchedExperiment]) -> None:
        explored = [stage for stage in plan.stages if stage.needs_rollout]
        await self._check_parts(explored, feed)
        for stage in explored:
            self._stage_name = stage.name
            ending = await self._run_stage(plan, stage, feed)
            if isinstance(ending, StageCancelled):
                raise RolloutStageFailed(
                    f"the buffer has ended the stage: {ending.reason or 'no reason given'}"
                )
            if not isinstance(ending, StageDrained):
                return

    async def _check_parts(
        self, stages: Sequence[StagePlan], feed: WatchFeed[WatchedExperiment]
    ) -> None:
        """Reports a wrong name in a later stage now, before the earlier stages have trained."""
        known = await feed.wait_for(lambda _: True)
        for stage in stages:
            if not _stage_of(known.experiment, stage.name).is_finished:
                await self._stages.check_stage_parts(stage)

    async def _run_stage(
        self, plan: ExperimentPlan, stage: StagePlan, feed: WatchFeed[WatchedExperiment]
    ) -> StageEnd:
        known = await feed.wait_for(lambda _: True)
        if _stage_of(known.experiment, stage.name).is_finished:
            return StageDrained()
        self._heartbeats.set_activity("starting the engine", MemberPhase.PREPARING)
        turns = self._turns_of(plan, stage, feed)
        models = await self._engines.ensure(stage, turns)
        if await self._is_over_before_start(stage, feed):
            return StageDrained()
        self._heartbeats.set_work(self._experiment.id, stage.name)
        self._heartbeats.set_activity(EXPLORING)
        ending = await self._explore(await self._stage_job(plan, stage, models, feed, turns))
        if isinstance(ending, StageDrained):
            await self._report_finished()
        return ending

    async def _stage_job(
        self,
        plan: ExperimentPlan,
        stage: StagePlan,
        models: LoadedStageModels,
        feed: WatchFeed[WatchedExperiment],
        turns: EngineTurns,
    ) -> StageJob:
        now = await feed.wait_for(lambda _: True)
        weights = None if stage.needs_training else _initial_weights(now.experiment, stage)
        return StageJob(
            key=self.key,
            plan=stage,
            seed=plan.seed,
            models=models,
            feed=feed,
            label=plan.label,
            fixed_weights=weights,
            turns=turns,
        )

    def _turns_of(
        self, plan: ExperimentPlan, stage: StagePlan, feed: WatchFeed[WatchedExperiment]
    ) -> EngineTurns:
        """Returns the turns of a stage whose engine shares its device with the trainer."""
        if not stage.takes_turns:
            return EngineOwnDevice()

        reports = ReportCounter()

        async def record(state: EngineTurnState, process: str, reason: str) -> None:
            place = reports.next_place()
            await self._retry_policy.retry(
                lambda: self._synchronizer.record_turn(
                    self._experiment.id, state, place, process=process, reason=reason
                ),
                waits_for="synchronizer",
                purpose="report a turn on the device",
            )

        settings = TurnSettings(
            path=device_lock_path(plan.job_path),
            sleep_level=stage.config.explorer.rollout_model.sleep_level,
            keeps_runs=stage.is_asynchronous,
            silence_seconds=stage.config.synchronizer.sync_timeout,
        )
        return EngineSharedDevice(
            settings,
            is_wanted=lambda: bool(feed.current and feed.current.experiment.trainer_wants_device),
            record=record,
            waits=self._heartbeats.waits,
        )

    async def _is_over_before_start(
        self, stage: StagePlan, feed: WatchFeed[WatchedExperiment]
    ) -> bool:
        """Waits until the stage runs or is over; returns true if it is over.

        The wait has no deadline: an earlier stage may train for any time, and its own trainer
        decides when to give up.
        """
        self._heartbeats.set_activity(f"waiting for stage {stage.name}")
        with self._heartbeats.waits.waiting(for_="trainer", reason=f"stage {stage.name} to begin"):
            now = await feed.wait_for(
                lambda now: _is_decided(_stage_of(now.experiment, stage.name))
            )
        return _stage_of(now.experiment, stage.name).is_finished

    async def _explore(self, job: StageJob) -> StageEnd:
        serves = job.plan.mode == "serve"
        self.holds_leases = not serves
        if serves:
            return await self._run_work(self._stages.prepare_serving(job))
        async with self._stages.open_stage(job) as work:
            return await self._run_work(work)

    async def _run_work(self, work: StageScheduler | ServingRunner) -> StageEnd:
        """Runs `work` until it is over."""
        self._work = work
        try:
            if self._stopping:
                work.stop_taking_work()
            return await work.run_stage()
        finally:
            self._work = None

    async def _report_finished(self) -> None:
        logger.info("stage finished", extra={"stage": self._stage_name})
        await self._retry_policy.retry(
            lambda: self._synchronizer.finish_role(self._experiment.id, self._stage_name),
            waits_for="synchronizer",
            purpose="finish the stage",
        )

    async def _report_failed(self, reason: str) -> None:
        """Reports the failure to the synchronizer, unless this start is already over there."""
        logger.error("the stage cannot go on", extra={"reason": reason})
        try:
            await self._retry_policy.retry(
                lambda: self._fail_if_running(reason),
                waits_for="synchronizer",
                purpose="report that the stage failed",
            )
        except (RpcError, RolloutStageFailed) as error:
            logger.error("the failure could not be reported", extra={"reason": str(error)})

    async def _fail_if_running(self, reason: str) -> None:
        if not self._is_over(await self._synchronizer.experiment(self._experiment.id)):
            await self._synchronizer.fail_stage(self._experiment, self._stage_name, reason)

    def _is_over(self, now: ExplorerExperimentState) -> bool:
        return not now.is_running or now.start_count != self._experiment.start_count


def _sync_timeout(plan: ExperimentPlan) -> float:
    return max(stage.config.synchronizer.sync_timeout for stage in plan.stages)


def _is_decided(stage: ExplorerStageState) -> bool:
    return stage.is_running or stage.is_finished


def _initial_weights(experiment: ExplorerExperimentState, stage: StagePlan) -> WeightsVersion:
    """Returns the final weights of the nearest earlier stage with any, else the user's model."""
    for before in reversed(experiment.stages[: stage.index]):
        if before.final is not None:
            return replace(before.final, id=WeightsId(version=0, incarnation=0))
    return model_weights(stage.model_path)


def _stage_of(experiment: ExplorerExperimentState, name: str) -> ExplorerStageState:
    found = experiment.stage(name)
    if found is None:
        raise NotFound(f"the experiment has no stage {name!r}, which its plan has")
    return found
