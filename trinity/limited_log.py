"""Logging of what a stranger can cause as often as it likes: a line at once, then counts."""

import asyncio
import logging
import time
from dataclasses import dataclass

INTERVAL_SECONDS = 10.0


@dataclass(slots=True)
class _Burst:
    """Events of one kind since the last line about them."""

    level: int
    until: float
    count: int = 0


class LimitedLog:
    """Logs the first event of a kind; those of the seconds after it are one line with a count.

    log = LimitedLog(logging.getLogger(__name__))
    log.warning("refused a request", reason="a is missing")  # a line
    log.warning("refused a request", reason="b is missing")  # counted
    # ten seconds after the first: "refused a request again" times=1

    Used from asyncio code only. A kind is a constant text, so there are few of them.
    """

    def __init__(self, logger: logging.Logger, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self._logger = logger
        self._interval_seconds = interval_seconds
        self._bursts: dict[str, _Burst] = {}

    def warning(self, kind: str, **extra: object) -> None:
        """Something that a caller did wrong."""
        if self._begins(kind, logging.WARNING):
            self._logger.warning(kind, extra=extra)

    def error(self, kind: str, error: BaseException, **extra: object) -> None:
        """Something that went wrong here, with its traceback."""
        if self._begins(kind, logging.ERROR):
            self._logger.error(kind, extra=extra, exc_info=error)

    def _begins(self, kind: str, level: int) -> bool:
        """Whether nothing of this kind was said lately; otherwise count it."""
        burst = self._bursts.get(kind)
        if burst is not None and time.monotonic() < burst.until + self._interval_seconds:
            burst.count += 1
            return False
        # Older than two intervals: the loop that should have ended it is gone.
        self._begin(kind, level)
        return True

    def _begin(self, kind: str, level: int) -> None:
        self._bursts[kind] = _Burst(level, time.monotonic() + self._interval_seconds)
        asyncio.get_running_loop().call_later(self._interval_seconds, self._end, kind)

    def _end(self, kind: str) -> None:
        """Say how many there were; a burst that goes on is told of once an interval."""
        burst = self._bursts.pop(kind, None)
        if burst is not None and burst.count:
            self._logger.log(burst.level, "%s again", kind, extra={"times": burst.count})
            self._begin(kind, burst.level)
