"""Detects a gang that is alive and makes no progress."""

import math
import time
from collections.abc import Callable

from services.trainer.gang import RankEvent
from services.trainer.messages import Waiting

START_SECONDS = 600.0
"""Least time limit for importing and joining, on slow disks too."""


class Watchdog:
    """Measures how long a gang may still be silent.

    Any rank's event counts: ranks that wait for one another cannot go on for long without each. A
    rank that reported a wait with a deadline may be silent until then.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = seconds
        self._first_seconds = max(seconds, START_SECONDS)
        self._started = clock()
        self._heard: float | None = None
        self._waits: dict[tuple[int, str], float] = {}
        """The times at which open waits give up, by rank and name."""

    @property
    def complaint(self) -> str:
        """The reason to give for a gang whose time is over."""
        return (
            f"no rank gave a sign of life for {self.silent_seconds:.0f} s, and none had said that "
            "it waits (`synchronizer.sync_timeout`)"
        )

    @property
    def is_excused(self) -> bool:
        """True if a rank has reported what it waits for."""
        return bool(self._waits)

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last sign of life, or since the start."""
        return self._clock() - (self._started if self._heard is None else self._heard)

    @property
    def limit_seconds(self) -> float:
        """Limit of silence without a reported wait."""
        return self._first_seconds if self._heard is None else self._seconds

    def note(self, heard: RankEvent) -> None:
        """Records an event of a rank."""
        self._heard = self._clock()
        if not isinstance(heard.event, Waiting):
            return
        place = heard.rank, heard.event.name
        if not heard.event.waits_for:
            self._waits.pop(place, None)
        else:
            self._waits.setdefault(place, self._heard + (heard.event.deadline_seconds or math.inf))

    def remaining_seconds(self) -> float:
        """Returns the seconds until the gang counts as stuck."""
        if self._heard is None:
            return self._started + self._first_seconds - self._clock()
        excused = max([self._heard, *self._waits.values()])
        return excused + self._seconds - self._clock()
