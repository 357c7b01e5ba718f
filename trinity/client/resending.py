"""Retry pauses and deadline of an upload."""

import time
from collections.abc import Callable
from dataclasses import dataclass

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0


@dataclass(slots=True)
class Resending:
    """Limits retries by time since a failure; an upload that got further restarts the limit.

    resending = Resending(patience_seconds=60.0)
    pause = resending.pause(num_sent=1_000)
    """

    patience_seconds: float
    clock: Callable[[], float] = time.monotonic
    _deadline: float = 0.0
    _furthest: int = -1
    _pause: float = FIRST_PAUSE_SECONDS

    def pause(self, num_sent: int) -> float | None:
        """Returns the seconds until the next attempt after a failure, or None to give up."""
        now = self.clock()
        if num_sent > self._furthest:
            self._furthest = num_sent
            self._deadline, self._pause = now + self.patience_seconds, FIRST_PAUSE_SECONDS
        if now + self._pause > self._deadline:
            return None
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return pause
