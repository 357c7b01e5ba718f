"""Decides what this explorer works on: the oldest of the experiments with the fewest explorers."""

import logging
from collections.abc import Sequence

from services.explorer.engines import Engines
from services.explorer.experiment_work import ExperimentWork
from services.explorer.feed import Feed
from services.explorer.stage_setup import StageSetup
from services.explorer.synchronizer_client import ExperimentView, SynchronizerClient
from services.explorer.unconfirmed import Unconfirmed
from trinity.errors import RpcError
from trinity.members import Heartbeats
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
