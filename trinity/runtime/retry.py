"""Retries of calls that fail for a while: growing pauses, a deadline, and one visible wait."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from trinity.errors import Unavailable

ValueT = TypeVar("ValueT")
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 0.5
"""A killed service is back within seconds, and a retry costs it little."""


class WaitReporter(Protocol):
    """Accepts waits by name; `trinity.runtime.presence.WaitRegistry` is one."""

    def set(
        self, name: str, *, waits_for: str, reason: str, deadline_seconds: float = 0.0
    ) -> None: ...

    def clear(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryWait:
    """The wait under which the failures of a call are reported."""

    reporter: WaitReporter
    name: str
    waits_for: str

    def show(self, reason: str, seconds: float) -> None:
        """Reports the wait; infinite `seconds` mean that it has no deadline."""
        deadline = seconds if math.isfinite(seconds) else 0.0
        self.reporter.set(
            self.name, waits_for=self.waits_for, reason=reason, deadline_seconds=deadline
        )

    def clear(self) -> None:
        """Reports that the wait is over."""
        self.reporter.clear(self.name)


@dataclass(slots=True, kw_only=True)
class Retry:
    """Consecutive failures of one operation, which is tried again until a deadline.

    retry = Retry(seconds=60.0, timeout_error=RunFailed, log=logger.warning)
    lease = await retry.call_async(buffer.lease)  # again for as long as it raises Unavailable

    The deadline counts from the first failure, or from `start`. `end` resets it: the operation
    works again, or it got further than before.
    """

    seconds: float
    timeout_error: Callable[[str], Exception]
    """Makes the error that is raised at the deadline, of the newest failure's text."""
    log: Callable[[str], None] | None = None
    """Called with a failure's text, if it is not that of the failure before."""
    prefix: str = ""
    """Precedes failures in the wait."""
    wait: RetryWait | None = None
    max_pause_seconds: float = MAX_PAUSE_SECONDS
    cut_last_pause: bool = True
    """Ends the last pause at the deadline; otherwise a pause that would pass it is not begun."""
    clock: Callable[[], float] = time.monotonic
    _started_at: float | None = None
    _reason: str = ""
    _pause_seconds: float = FIRST_PAUSE_SECONDS

    def start(self) -> None:
        """Lets the deadline count from now."""
        self._started_at = self.clock()

    def record_failure(self, error: Exception) -> None:
        """Shows the newest failure; logs it if its text is another one.

        Raises: the timeout error when there is no time for another attempt.
        """
        reason = str(error)
        if self._started_at is None:
            self.start()
        left = self._seconds_left
        if left <= 0 or (left < self._pause_seconds and not self.cut_last_pause):
            raise self.timeout_error(reason) from error
        if self.log is not None and reason != self._reason:
            self.log(reason)
        self._reason = reason
        if self.wait is not None:
            self.wait.show(self.prefix + reason, self.seconds)

    def next_pause(self) -> float:
        """Returns the seconds until the next attempt: longer each time, but cut at the deadline."""
        pause = self._pause_seconds
        self._pause_seconds = min(2 * pause, self.max_pause_seconds)
        return min(pause, max(self._seconds_left, 0.0))

    def end(self) -> None:
        """Forgets the failures and clears the wait."""
        self._started_at, self._reason, self._pause_seconds = None, "", FIRST_PAUSE_SECONDS
        if self.wait is not None:
            self.wait.clear()

    def call(
        self, attempt: Callable[[], ValueT], sleep: Callable[[float], None] = time.sleep
    ) -> ValueT:
        """Returns the result of `attempt`, retrying for as long as it raises Unavailable.

        Raises: the timeout error; what `sleep` raises, which may stop the retries.
        """
        try:
            while True:
                try:
                    return attempt()
                except Unavailable as error:
                    self.record_failure(error)
                sleep(self.next_pause())
        finally:
            self.end()

    async def call_async(self, attempt: Callable[[], Awaitable[ValueT]]) -> ValueT:
        """Returns the result of `attempt`, retrying for as long as it raises Unavailable.

        Raises: the timeout error.
        """
        try:
            while True:
                try:
                    return await attempt()
                except Unavailable as error:
                    self.record_failure(error)
                await asyncio.sleep(self.next_pause())
        finally:
            self.end()

    @property
    def _seconds_left(self) -> float:
        started_at = self.clock() if self._started_at is None else self._started_at
        return started_at + self.seconds - self.clock()
