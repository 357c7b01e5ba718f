"""The explorer's part of one experiment: stage by stage, until it is over or cannot go on."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from services.explorer.clients.streams import Feed
from services.explorer.clients.synchronizer import (
    ExperimentView,
    Published,
    StageView,
    SynchronizerClient,
)
from services.explorer.control.stage import StageJob, StageSetup
from services.explorer.counters import EXPLORING
from services.explorer.engines import Engines
from services.explorer.retry import Patience, StageFailed, sentence_of
from services.explorer.rollout.scheduler import StageWork
from services.explorer.serving.work import ServeWork
from services.explorer.types import (
    Cancelled,
    Drained,
    Ending,
    PublishedWeights,
    WeightsId,
    model_weights,
)
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.errors import NotFound, RpcError
from trinity.runtime.presence import Heartbeats
from trinity.types import StageKey

logger = logging.getLogger(__name__)

WITHOUT_PLAN_SECONDS = 600.0
"""Deadline for reading the plan, which sets the deadline from then on."""


class ExperimentWork:
    """Works on one start of an experiment; used once.

    The engine starts at once, while an earlier stage may still be training.
    """

    def __init__(
        self,
        *,
        experiment: ExperimentView,
        synchronizer: SynchronizerClient,
        engines: Engines,
        setup: StageSetup,
        beats: Heartbeats,
    ) -> None:
        self._experiment = experiment
        self._synchronizer = synchronizer
        self._engines = engines
        self._setup = setup
        self._beats = beats
        self._patience = Patience(beats.waits, WITHOUT_PLAN_SECONDS)
        self._stage_name = next(stage.name for stage in experiment.stages if not stage.is_over)
        self._work: StageWork | ServeWork | None = None
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

    def stop(self) -> bool:
        """Stops taking work; returns whether there are runs that may still end."""
        self._stopping = True
        if self._work is None:
            return False
        self._work.stop()
        return True

    async def run(self) -> None:
        """Runs until the experiment needs nothing more, is over, was restarted, or has failed."""
        try:
            await self._follow()
        except Exception as error:  # an ExceptionGroup from the tasks below
            sentence = sentence_of(error)
            if sentence is None:
                raise
            await self._fail(sentence)

    async def _follow(self) -> None:
        plan = await self._patience.persist(
            lambda: self._synchronizer.plan(self._experiment.id),
            waits_for="synchronizer",
            purpose="read the experiment's plan",
        )
        self._patience = Patience(self._beats.waits, _sync_timeout(plan))
        feed: Feed[Published] = Feed(
            lambda: self._synchronizer.watch_experiment(self._experiment.id),
            waits_for="synchronizer",
            purpose="follow the experiment",
            patience=self._patience,
        )
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(feed.run())
            working = tasks.create_task(self._stages(plan, feed))
            ended = tasks.create_task(feed.wait_for(lambda now: self._is_over(now.experiment)))
            await asyncio.wait((working, ended), return_when=asyncio.FIRST_COMPLETED)
            for task in (following, working, ended):
                task.cancel()

    async def _stages(self, plan: ExperimentPlan, feed: Feed[Published]) -> None:
        explored = [stage for stage in plan.stages if stage.needs_rollout]
        await self._check(explored, feed)
        for stage in explored:
            self._stage_name = stage.name
            ending = await self._stage(plan, stage, feed)
            if isinstance(ending, Cancelled):
                raise StageFailed(
                    f"the buffer has ended the stage: {ending.reason or 'no reason given'}"
                )
            if not isinstance(ending, Drained):
                return

    async def _check(self, stages: Sequence[StagePlan], feed: Feed[Published]) -> None:
        """Reports a wrong name in a later stage now, before the earlier stages have trained."""
        known = await feed.wait_for(lambda _: True)
        for stage in stages:
            if not _stage_of(known.experiment, stage.name).is_over:
                await self._setup.check(stage)

    async def _stage(self, plan: ExperimentPlan, stage: StagePlan, feed: Feed[Published]) -> Ending:
        known = await feed.wait_for(lambda _: True)
        if _stage_of(known.experiment, stage.name).is_over:
            return Drained()
        self._beats.set_activity("starting the engine")
        engine = await self._engines.ensure(stage)
        if await self._begins_never(stage, feed):
            return Drained()
        self._beats.set_work(self._experiment.id, stage.name)
        self._beats.set_activity(EXPLORING)
        now = await feed.wait_for(lambda _: True)
        weights = None if stage.needs_training else _start_of(now.experiment, stage)
        job = StageJob(
            key=self.key,
            plan=stage,
            seed=plan.seed,
            engine=engine,
            feed=feed,
            label=plan.label,
            given=weights,
        )
        ending = await self._explore(job)
        if isinstance(ending, Drained):
            await self._finish()
        return ending

    async def _begins_never(self, stage: StagePlan, feed: Feed[Published]) -> bool:
        """Waits until the stage runs or is over; returns true if it is over.

        The wait has no deadline: an earlier stage may train for any time, and its own trainer
        decides when to give up.
        """
        self._beats.set_activity(f"waiting for stage {stage.name}")
        with self._beats.waits.waiting(for_="trainer", reason=f"stage {stage.name} to begin"):
            now = await feed.wait_for(
                lambda now: _is_settled(_stage_of(now.experiment, stage.name))
            )
        return _stage_of(now.experiment, stage.name).is_over

    async def _explore(self, job: StageJob) -> Ending:
        serves = job.plan.mode == "serve"
        self.holds_leases = not serves
        if serves:
            return await self._end(self._setup.serve(job))
        async with self._setup.opened(job) as work:
            return await self._end(work)

    async def _end(self, work: StageWork | ServeWork) -> Ending:
        """Runs `work` until it is over."""
        self._work = work
        try:
            if self._stopping:
                work.stop()
            return await work.run()
        finally:
            self._work = None

    async def _finish(self) -> None:
        logger.info("stage finished", extra={"stage": self._stage_name})
        await self._patience.persist(
            lambda: self._synchronizer.finish_role(self._experiment.id, self._stage_name),
            waits_for="synchronizer",
            purpose="finish the stage",
        )

    async def _fail(self, sentence: str) -> None:
        """Reports the failure to the synchronizer, unless this start is already over there."""
        logger.error("the stage cannot go on", extra={"reason": sentence})
        try:
            await self._patience.persist(
                lambda: self._fail_if_running(sentence),
                waits_for="synchronizer",
                purpose="report that the stage failed",
            )
        except (RpcError, StageFailed) as error:
            logger.error("the failure could not be reported", extra={"reason": str(error)})

    async def _fail_if_running(self, sentence: str) -> None:
        if not self._is_over(await self._synchronizer.experiment(self._experiment.id)):
            await self._synchronizer.fail_stage(self._experiment, self._stage_name, sentence)

    def _is_over(self, now: ExperimentView) -> bool:
        return not now.is_running or now.start_count != self._experiment.start_count


def _sync_timeout(plan: ExperimentPlan) -> float:
    return max(stage.config.synchronizer.sync_timeout for stage in plan.stages)


def _is_settled(stage: StageView) -> bool:
    return stage.is_running or stage.is_over


def _start_of(experiment: ExperimentView, stage: StagePlan) -> PublishedWeights:
    """Returns the final weights of the nearest earlier stage with any, else the user's model."""
    for before in reversed(experiment.stages[: stage.index]):
        if before.final is not None:
            return replace(before.final, id=WeightsId(version=0, incarnation=0))
    return model_weights(stage.model_path)


def _stage_of(experiment: ExperimentView, name: str) -> StageView:
    found = experiment.stage(name)
    if found is None:
        raise NotFound(f"the experiment has no stage {name!r}, which its plan has")
    return found
