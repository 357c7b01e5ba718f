"""The clock of runs, which stands still while no run can go on."""

import asyncio
import time
from typing import Any

LEAST_WAIT_SECONDS = 0.05
"""A wait at a clock that stands still looks this often, or as often as it has time left."""


class WorkClock:
    """Monotonic seconds without those in which no run could go on.

    clock = WorkClock()
    clock.stop()      # the trainer's turn
    clock.go_on()
    await clock.sleep(60.0)  # a minute of work
    """

    def __init__(self) -> None:
        self._lost = 0.0
        self._stopped_at: float | None = None

    def now(self) -> float:
        """Returns the seconds; only differences mean something."""
        at = time.monotonic() if self._stopped_at is None else self._stopped_at
        return at - self._lost

    def stop(self) -> None:
        """Stands still from now on."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()

    def go_on(self) -> None:
        """Continues; has no effect on a running clock."""
        if self._stopped_at is not None:
            self._lost += time.monotonic() - self._stopped_at
            self._stopped_at = None

    async def sleep(self, seconds: float) -> None:
        """Returns once that much work was possible."""
        until = self.now() + seconds
        while (left := until - self.now()) > 0:  # noqa: ASYNC110 - no event ends it
            await asyncio.sleep(max(left, LEAST_WAIT_SECONDS))

    async def wait_for(self, task: asyncio.Task[Any], seconds: float) -> None:
        """Returns when the task is done, or when that much work was possible."""
        until = self.now() + seconds
        await asyncio.wait({task}, timeout=max(seconds, 0.0))
        while not task.done() and (left := until - self.now()) > 0:
            await asyncio.wait({task}, timeout=max(left, LEAST_WAIT_SECONDS))
