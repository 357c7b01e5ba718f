"""Where the time of one start of a run went: phases that follow one another without a gap."""

import time
from collections.abc import Callable

TOTAL = "total"


class Phases:
    """Seconds by phase; one that comes again adds up.

    phases = Phases("start")
    phases.begin("rft")
    phases.seconds()  # {"start": 4.1, "rft": 0.2, "total": 4.3}
    """

    def __init__(self, first: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._current = first
        self._since = clock()
        self._passed: dict[str, float] = {}

    def begin(self, name: str) -> None:
        """End the present phase."""
        now = self._clock()
        self._passed[self._current] = self._passed.get(self._current, 0.0) + now - self._since
        self._current, self._since = name, now

    def seconds(self) -> dict[str, float]:
        """All phases so far and their sum."""
        self.begin(self._current)
        return {**self._passed, TOTAL: sum(self._passed.values())}
