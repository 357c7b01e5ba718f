"""One life of the gang in one stage: from its order until it ends, dies or is no longer needed."""

import asyncio
import math
import time
from asyncio import FIRST_COMPLETED
from dataclasses import dataclass
from enum import Enum

from services.trainer.gang import Gang, RankDied, RankEvent
from services.trainer.jobs import Job, JobBoard
from services.trainer.messages import Activity, StageEnded, StageFailed, Waiting
from services.trainer.state import TrainerState
from services.trainer.watchdog import Watchdog

SILENCE = "silence"
SHOWN_SILENCE_SECONDS = 2.0
LAST_LISTEN_SECONDS = 0.1
"""Least time to listen: what ranks sent while the service was held up counts, however late."""


class Outcome(Enum):
    """The ways in which a life ends."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    """The buffer ended the stage."""
    SUPERSEDED = "superseded"
    """A newer incarnation trains the stage."""
    DIED = "died"
    """Another life may succeed."""
    HOPELESS = "hopeless"
    """Another life would end the same way."""
    UNWANTED = "unwanted"
    """The stage is no longer to be trained, or the service stops."""


@dataclass(frozen=True, slots=True)
class LifeEnd:
    """The outcome of a life and its reason; the ranks are of further use only after FINISHED."""

    outcome: Outcome
    reason: str = ""


class StageLife:
    """Follows the gang, and ends with the first rank that ends in any way but by finishing."""

    def __init__(
        self,
        *,
        gang: Gang,
        job: Job,
        board: JobBoard,
        state: TrainerState,
        stop: asyncio.Event,
        stop_seconds: float,
    ) -> None:
        self._gang = gang
        self._job = job
        self._board = board
        self._state = state
        self._stop = stop
        self._stop_seconds = stop_seconds
        self._unwanted_since: float | None = None
        self.made_progress = False
        """True if a step was trained for the first time."""

    async def run(self) -> LifeEnd:
        """Has the stage trained."""
        watchdog = Watchdog(self._job.silence_seconds)
        self._gang.order(self._job.order)
        num_finished = 0
        while num_finished < self._gang.num_ranks:
            heard = await self._hear(watchdog)
            match heard:
                case LifeEnd():
                    return heard
                case RankDied(reason=reason):
                    return LifeEnd(Outcome.DIED, reason)
                case RankEvent(event=StageFailed(reason=reason, can_retry=can_retry)):
                    return LifeEnd(Outcome.DIED if can_retry else Outcome.HOPELESS, reason)
                case RankEvent(event=StageEnded(outcome="finished")):
                    num_finished += 1
                case RankEvent(event=StageEnded(outcome=outcome, reason=reason)):
                    return LifeEnd(Outcome(outcome), reason)
                case RankEvent():
                    self._note(heard)
        return LifeEnd(Outcome.FINISHED)

    async def _hear(self, watchdog: Watchdog) -> RankEvent | RankDied | LifeEnd:
        """Returns a rank's next event, or the end of the life."""
        shown = asyncio.get_running_loop().call_later(
            SHOWN_SILENCE_SECONDS, self._show_silence, watchdog
        )
        try:
            return await self._hear_next(watchdog)
        finally:
            shown.cancel()
            self._state.clear_wait(SILENCE)

    def _show_silence(self, watchdog: Watchdog) -> None:
        """Shows a wait for ranks that have not said what they wait for themselves."""
        if watchdog.is_excused:
            return
        self._state.set_wait(
            SILENCE,
            waits_for="ranks",
            reason=f"a sign of life; the last one: {self._state.activity}",
            deadline_seconds=watchdog.limit_seconds,
            waited_seconds=watchdog.silent_seconds,
        )

    async def _hear_next(self, watchdog: Watchdog) -> RankEvent | RankDied | LifeEnd:
        while not self._stop.is_set():
            seen = self._board.num_news
            silence, unwanted = watchdog.remaining_seconds(), self._unwanted_seconds()
            if unwanted <= 0:
                break
            heard = await self._next(seen, max(min(silence, unwanted), LAST_LISTEN_SECONDS))
            if isinstance(heard, RankEvent):
                watchdog.note(heard)
            if heard is not None:
                return heard
            if silence <= 0:
                return LifeEnd(Outcome.DIED, watchdog.complaint)
        return LifeEnd(Outcome.UNWANTED)

    def _unwanted_seconds(self) -> float:
        """Returns how long to go on listening; infinite while the stage is to be trained.

        A stage also leaves the list when its ranks have finished it: they soon report that.
        """
        if not self._board.is_connected or self._board.wants(self._job.key):
            self._unwanted_since = None
            return math.inf
        if self._board.wants_anew(self._job.key):
            return 0.0
        now = time.monotonic()
        if self._unwanted_since is None:
            self._unwanted_since = now
        return self._unwanted_since + self._stop_seconds - now

    async def _next(self, seen: int, seconds: float) -> RankEvent | RankDied | None:
        """Returns the gang's next event; None when news, the stop or the time limit come first."""
        hearing = asyncio.create_task(self._gang.hear())
        others: list[asyncio.Task[object]] = [
            asyncio.create_task(self._stop.wait()),
            asyncio.create_task(self._board.wait_for_news(seen)),
        ]
        limit = None if math.isinf(seconds) else seconds
        await asyncio.wait([hearing, *others], timeout=limit, return_when=FIRST_COMPLETED)
        for other in others:
            other.cancel()
        if hearing.done():
            return hearing.result()
        hearing.cancel()
        return None

    def _note(self, heard: RankEvent) -> None:
        """Records waits of all ranks, but activities of the first rank alone."""
        if isinstance(heard.event, Waiting):
            self._state.note_wait(heard.rank, heard.event)
        elif isinstance(heard.event, Activity) and heard.rank == 0:
            self.made_progress |= self._state.note_activity(heard.event)
