"""Decides what this explorer works on: the oldest running experiment, stage by stage."""

import asyncio
import logging

from services.explorer.engines import Engines
from services.explorer.feed import Feed
from services.explorer.retry import persist
from services.explorer.stage_setup import StageJob, StageSetup
from services.explorer.stage_work import Ending, StageWork
from services.explorer.status import Status
from services.explorer.synchronizer_client import (
    ExperimentView,
    Published,
    StageView,
    SynchronizerClient,
)
from trinity.config.plan import ExperimentPlan, StagePlan
from trinity.errors import InvalidRequest, NotFound, PreconditionFailed, UserError
from trinity.types import StageKey

logger = logging.getLogger(__name__)

IDLE = "idle"


class Director:
    """Works on one experiment at a time, until it is over or `stop` is called.

    The engine starts as soon as an experiment with rollout is known, while an earlier stage may
    still be training.
    """

    def __init__(
        self,
        *,
        synchronizer: SynchronizerClient,
        experiments: Feed[tuple[ExperimentView, ...]],
        engines: Engines,
        setup: StageSetup,
        status: Status,
    ) -> None:
        self._synchronizer = synchronizer
        self._experiments = experiments
        self._engines = engines
        self._setup = setup
        self._status = status
        self._work: StageWork | None = None
        self._key: StageKey | None = None
        self._stopping = False

    async def run(self) -> None:
        """Until `stop` was called and what had begun is over; or until cancelled."""
        seen: tuple[ExperimentView, ...] | None = None
        while not self._stopping:
            self._status.set_activity(IDLE)
            seen = await self._next_state(seen)
            experiment = next(filter(_has_work, seen))
            self._status.set_work(experiment.id, "")
            try:
                await self._follow(experiment)
            finally:
                self._status.set_work("", "")

    @property
    def key(self) -> StageKey | None:
        """The stage that leases are held in."""
        return self._key

    def stop(self) -> bool:
        """Take no more work; says whether there are runs that may still end."""
        self._stopping = True
        if self._work is None:
            return False
        self._work.stop()
        return True

    async def _next_state(
        self, seen: tuple[ExperimentView, ...] | None
    ) -> tuple[ExperimentView, ...]:
        """Experiments with work, as they are after `seen` was dealt with."""
        return await self._experiments.wait_for(
            lambda now: now is not seen and any(map(_has_work, now))
        )

    async def _follow(self, experiment: ExperimentView) -> None:
        """Until the experiment needs nothing more, is over, or was started anew."""
        plan = await persist(
            lambda: self._synchronizer.plan(experiment.id),
            status=self._status,
            waits_for="synchronizer",
            purpose="read the experiment's plan",
        )
        feed: Feed[Published] = Feed(
            lambda: self._synchronizer.watch_experiment(experiment.id),
            waits_for="synchronizer",
            status=self._status,
        )
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(feed.run())
            working = tasks.create_task(self._stages(experiment, plan, feed))
            ended = tasks.create_task(
                feed.wait_for(lambda now: _is_over(now.experiment, experiment))
            )
            await asyncio.wait((working, ended), return_when=asyncio.FIRST_COMPLETED)
            for task in (following, working, ended):
                task.cancel()

    async def _stages(
        self, experiment: ExperimentView, plan: ExperimentPlan, feed: Feed[Published]
    ) -> None:
        for stage in plan.stages:
            if not stage.needs_rollout:
                continue
            try:
                ending = await self._stage(experiment, plan, stage, feed)
            except (UserError, PreconditionFailed, InvalidRequest, NotFound) as error:
                logger.error("the stage cannot go on", extra={"reason": str(error)})
                await self._fail(experiment, stage, str(error))
                return
            if ending is Ending.CANCELLED:
                await feed.wait_for(lambda now: _is_over(now.experiment, experiment))
            if ending is not Ending.DRAINED:
                return

    async def _stage(
        self,
        experiment: ExperimentView,
        plan: ExperimentPlan,
        stage: StagePlan,
        feed: Feed[Published],
    ) -> Ending:
        known = await feed.wait_for(lambda _: True)
        if _stage_of(known.experiment, stage.name).is_over:
            return Ending.DRAINED
        self._status.set_activity("starting the engine")
        engine = await self._engines.ensure(stage)
        if await self._begins_never(stage, feed):
            return Ending.DRAINED
        self._status.set_work(experiment.id, stage.name)
        self._status.set_activity("exploring")
        self._key = StageKey(
            tenant=experiment.tenant, experiment_id=experiment.id, stage=stage.name
        )
        job = StageJob(key=self._key, plan=stage, seed=plan.seed, engine=engine, feed=feed)
        ending = await self._explore(job)
        if ending is Ending.DRAINED:
            await self._finish(experiment, stage)
        return ending

    async def _begins_never(self, stage: StagePlan, feed: Feed[Published]) -> bool:
        """Wait until the stage runs; true when it is over without having waited for this."""
        self._status.set_activity(f"waiting for stage {stage.name}")
        with self._status.waiting("stage", "trainer", f"stage {stage.name} to begin"):
            now = await feed.wait_for(
                lambda now: _is_settled(_stage_of(now.experiment, stage.name))
            )
        return _stage_of(now.experiment, stage.name).is_over

    async def _explore(self, job: StageJob) -> Ending:
        self._work = await self._setup.open(job)
        try:
            if self._stopping:
                self._work.stop()
            return await self._work.run()
        finally:
            self._work = None

    async def _finish(self, experiment: ExperimentView, stage: StagePlan) -> None:
        logger.info("stage finished", extra={"stage": stage.name})
        await persist(
            lambda: self._synchronizer.finish_role(experiment.id, stage.name),
            status=self._status,
            waits_for="synchronizer",
            purpose="finish the stage",
        )

    async def _fail(self, experiment: ExperimentView, stage: StagePlan, reason: str) -> None:
        await persist(
            lambda: self._synchronizer.fail_stage(experiment.id, stage.name, reason),
            status=self._status,
            waits_for="synchronizer",
            purpose="report a failure",
        )


def _has_work(experiment: ExperimentView) -> bool:
    return experiment.is_running and any(not stage.is_over for stage in experiment.stages)


def _is_settled(stage: StageView) -> bool:
    return stage.is_running or stage.is_over


def _is_over(now: ExperimentView, then: ExperimentView) -> bool:
    return not now.is_running or now.start_count != then.start_count


def _stage_of(experiment: ExperimentView, name: str) -> StageView:
    found = experiment.stage(name)
    if found is None:
        raise NotFound(f"the experiment has no stage {name!r}, which its plan has")
    return found
