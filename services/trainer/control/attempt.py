"""One attempt to train a stage, and the watchdog of its ranks."""

import asyncio
import math
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from services.trainer.control.gang import Gang, RankDied, RankEvent
from services.trainer.control.jobs import StageWatcher, TrainingJob
from services.trainer.control.status import TrainerState
from services.trainer.messages import (
    RankActivity,
    RankStageEnded,
    RankStageFailed,
    RankWaiting,
    SaveOrder,
    encode,
)

START_SECONDS = 600.0
"""Least time limit for importing and joining, on slow disks too."""
SILENCE_WAIT = "silence"
SHOWN_SILENCE_SECONDS = 2.0
TOLD_SILENCE_SECONDS = 30.0
"""Shorter silences are micro-batches: after their end they would push all other waits out."""
MIN_LISTEN_SECONDS = 0.1
"""Least time to listen, so that events count that ranks sent while the service was blocked."""
TRAINING = "training"
"""Prefix of the first rank's activities during a step."""


class Watchdog:
    """Detects ranks that have been silent for too long.

    An event of any rank counts, as ranks that wait for one another cannot go on alone. A rank that
    reported a wait with a deadline may be silent until then.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = seconds
        self._first_seconds = max(seconds, START_SECONDS)
        self._started = clock()
        self._last_event_at: float | None = None
        self._waits: dict[tuple[int, str], float] = {}
        """The times at which open waits give up, by rank and name."""

    @property
    def timeout_reason(self) -> str:
        """The reason to report for ranks that were silent for too long."""
        return (
            f"no rank gave a sign of life for {self.silent_seconds:.0f} s or reported a wait "
            "(`synchronizer.sync_timeout`)"
        )

    @property
    def has_open_wait(self) -> bool:
        """True if a rank has reported a wait."""
        return bool(self._waits)

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last sign of life, or since the start."""
        return self._clock() - (
            self._started if self._last_event_at is None else self._last_event_at
        )

    @property
    def limit_seconds(self) -> float:
        """Limit of silence without a reported wait."""
        return self._first_seconds if self._last_event_at is None else self._seconds

    def record_event(self, received: RankEvent) -> None:
        """Records an event of a rank."""
        self._last_event_at = self._clock()
        if not isinstance(received.event, RankWaiting):
            return
        place = received.rank, received.event.name
        if not received.event.waits_for:
            self._waits.pop(place, None)
        else:
            self._waits.setdefault(
                place, self._last_event_at + (received.event.deadline_seconds or math.inf)
            )

    def remaining_seconds(self) -> float:
        """Returns the seconds until the ranks count as stuck."""
        if self._last_event_at is None:
            return self._started + self._first_seconds - self._clock()
        excused = max([self._last_event_at, *self._waits.values()])
        return excused + self._seconds - self._clock()


class StageOutcome(Enum):
    """The ways in which an attempt ends."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """Left as ordered, with the trained steps saved."""
    CANCELLED = "cancelled"
    """The buffer ended the stage."""
    SUPERSEDED = "superseded"
    """A newer incarnation trains the stage."""
    AGAIN = "again"
    """Weights were damaged after the training: the next attempt has them from the checkpoint."""
    DIED = "died"
    """Another attempt may succeed."""
    RETRIES_EXHAUSTED = "hopeless"
    """Another attempt would end the same way."""
    NO_LONGER_NEEDED = "unwanted"
    """The stage is no longer to be trained, or the service stops."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """The outcome of an attempt, and its reason.

    FINISHED and STOPPED leave ranks of further use.
    """

    outcome: StageOutcome
    reason: str = ""


class StageAttempt:
    """One attempt of the ranks to train the stage; the first that does not finish ends it."""

    def __init__(
        self,
        *,
        gang: Gang,
        job: TrainingJob,
        watcher: StageWatcher,
        state: TrainerState,
        stop: asyncio.Event,
        stop_seconds: float,
    ) -> None:
        self._gang = gang
        self._job = job
        self._watcher = watcher
        self._state = state
        self._stop = stop
        self._stop_seconds = stop_seconds
        self._unneeded_since: float | None = None
        self.made_progress = False
        """True if a step was trained for the first time."""
        self.is_training = False
        """True from the first step on."""
        self.saved_step: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        """Once the attempt has ended: the newest step, if the stage was left with it saved."""

    async def run_once(self) -> StageResult:
        """Has the stage trained."""
        watchdog = Watchdog(self._job.silence_seconds)
        self._gang.send_stage(self._job.order)
        num_ended, ending = 0, StageOutcome.FINISHED
        while num_ended < self._gang.num_ranks:
            received = await self._next_event_or_end(watchdog)
            match received:
                case StageResult():
                    return received
                case RankDied(reason=reason):
                    return StageResult(StageOutcome.DIED, reason)
                case RankEvent(event=RankStageFailed(reason=reason, can_retry=can_retry)):
                    return StageResult(
                        StageOutcome.DIED if can_retry else StageOutcome.RETRIES_EXHAUSTED, reason
                    )
                case RankEvent(event=RankStageEnded(outcome="finished" | "stopped" as how)):
                    num_ended += 1
                    ending = StageOutcome(how) if received.rank == 0 else ending
                case RankEvent(event=RankStageEnded(outcome=outcome, reason=reason)):
                    return StageResult(StageOutcome(outcome), reason)
                case RankEvent():
                    self._record_event(received)
        return StageResult(ending)

    def is_of(self, tenant: str, experiment_id: str) -> bool:
        """True if the stage is one of this experiment."""
        order = self._job.order
        return (order.tenant, order.experiment_id) == (tenant, experiment_id)

    def order_save(self) -> None:
        """Tells all ranks to end the step in hand, save it and leave the stage."""
        self._gang.send_order(encode(SaveOrder()))

    async def _next_event_or_end(self, watchdog: Watchdog) -> RankEvent | RankDied | StageResult:
        """Returns a rank's next event, or the end of the attempt."""
        shown = asyncio.get_running_loop().call_later(
            SHOWN_SILENCE_SECONDS, self._show_silence_wait, watchdog
        )
        try:
            return await self._await_event_or_end(watchdog)
        finally:
            shown.cancel()
            self._state.clear_wait(SILENCE_WAIT, told_from=TOLD_SILENCE_SECONDS)

    def _show_silence_wait(self, watchdog: Watchdog) -> None:
        """Shows a wait for silent ranks, unless a rank has reported its own wait."""
        if watchdog.has_open_wait:
            return
        self._state.set_wait(
            SILENCE_WAIT,
            waits_for="ranks",
            reason=f"to report progress; the last report: {self._state.activity}",
            deadline_seconds=watchdog.limit_seconds,
            waited_seconds=watchdog.silent_seconds,
        )

    async def _await_event_or_end(self, watchdog: Watchdog) -> RankEvent | RankDied | StageResult:
        while not self._stop.is_set():
            seen = self._watcher.update_count
            silence, listen_seconds = watchdog.remaining_seconds(), self._listen_seconds_left()
            if listen_seconds <= 0:
                break
            received = await self._await_event(
                seen, max(min(silence, listen_seconds), MIN_LISTEN_SECONDS)
            )
            if isinstance(received, RankEvent):
                watchdog.record_event(received)
            if received is not None:
                return received
            if silence <= 0:
                return StageResult(StageOutcome.DIED, watchdog.timeout_reason)
        return StageResult(StageOutcome.NO_LONGER_NEEDED)

    def _listen_seconds_left(self) -> float:
        """Returns how long to go on listening; infinite while the stage is to be trained.

        A stage also leaves the list when its ranks have finished it: they soon report that.
        """
        if not self._watcher.is_connected or self._watcher.is_to_be_trained(self._job.key):
            self._unneeded_since = None
            return math.inf
        if self._watcher.has_later_start(self._job.key):
            return 0.0
        now = time.monotonic()
        if self._unneeded_since is None:
            self._unneeded_since = now
        return self._unneeded_since + self._stop_seconds - now

    async def _await_event(self, seen: int, seconds: float) -> RankEvent | RankDied | None:
        """Returns the ranks' next event; None when news, the stop or the time limit come first."""
        receiving = asyncio.create_task(self._gang.next_event())
        others: list[asyncio.Task[object]] = [
            asyncio.create_task(self._stop.wait()),
            asyncio.create_task(self._watcher.wait_for_update(seen)),
        ]
        limit = None if math.isinf(seconds) else seconds
        await asyncio.wait([receiving, *others], timeout=limit, return_when=FIRST_COMPLETED)
        for other in others:
            other.cancel()
        if receiving.done():
            return receiving.result()
        receiving.cancel()
        return None

    def _record_event(self, received: RankEvent) -> None:
        """Records waits of all ranks, but activities of the first rank alone."""
        if isinstance(received.event, RankWaiting):
            self._state.record_rank_wait(received.rank, received.event)
        elif isinstance(received.event, RankActivity) and received.rank == 0:
            self.made_progress |= self._state.record_activity(received.event)
            self.is_training |= received.event.activity.startswith(TRAINING)
