"""Notices a gang that lives and does nothing."""

import math
import time
from collections.abc import Callable

from services.trainer.gang import RankEvent
from services.trainer.messages import Waiting

START_SECONDS = 600.0
"""Least time that importing and joining may take, on whatever disk."""


class Watchdog:
    """How long a gang may still be silent.

    Any rank's word counts: ranks that wait for one another cannot go on for long without each. A
    rank that said whom it waits for, and until when, may be silent for that long besides.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = seconds
        self._first_seconds = max(seconds, START_SECONDS)
        self._started = clock()
        self._heard: float | None = None
        self._waits: dict[tuple[int, str], float] = {}
        """Open waits, by rank and name, and when they give up."""

    @property
    def complaint(self) -> str:
        """What to say of a gang whose time is over."""
        return (
            f"no rank gave a sign of life for {self.silent_seconds:.0f} s, and none had said that "
            "it waits (`synchronizer.sync_timeout`)"
        )

    @property
    def is_excused(self) -> bool:
        """Whether a rank has said whom it waits for."""
        return bool(self._waits)

    @property
    def silent_seconds(self) -> float:
        """Since the last sign of life, or since the beginning."""
        return self._clock() - (self._started if self._heard is None else self._heard)

    @property
    def limit_seconds(self) -> float:
        """How long silence may last, without an excuse."""
        return self._first_seconds if self._heard is None else self._seconds

    def note(self, heard: RankEvent) -> None:
        """A rank has said something."""
        self._heard = self._clock()
        if not isinstance(heard.event, Waiting):
            return
        place = heard.rank, heard.event.name
        if not heard.event.waits_for:
            self._waits.pop(place, None)
        else:
            self._waits.setdefault(place, self._heard + (heard.event.deadline_seconds or math.inf))

    def remaining_seconds(self) -> float:
        """Until the gang counts as stuck."""
        if self._heard is None:
            return self._started + self._first_seconds - self._clock()
        excused = max([self._heard, *self._waits.values()])
        return excused + self._seconds - self._clock()
