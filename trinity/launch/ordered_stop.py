"""Lets Ctrl-C, SIGTERM and a closed terminal end a run in order, however often they come."""

import asyncio
import signal
from collections.abc import Awaitable
from typing import TypeVar

from trinity.launch.preparing import Says

T = TypeVar("T")
NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """The person pressed Ctrl-C."""


class OrderedStop:
    """The first signal cancels what runs; what stops already is never cut short.

    Every signal is answered with a line at once: a stop takes seconds, and silence invites a kill.

        stop = OrderedStop(reporter)
        await stop.guard(work())   # raises Interrupted after work() has ended in order
    """

    def __init__(self, reporter: Says) -> None:
        self._reporter = reporter
        self._is_stopping = False

    def begins(self) -> None:
        """The work stops by itself: it has come to its end, or failed."""
        self._is_stopping = True

    async def guard(self, way: Awaitable[T]) -> T:
        """Await.

        Raises: Interrupted when a signal has ended it.
        """
        task = asyncio.ensure_future(way)
        loop = asyncio.get_running_loop()
        numbers = _heeded()
        for number in numbers:
            loop.add_signal_handler(number, self._signalled, task)
        try:
            return await task
        except asyncio.CancelledError:
            raise Interrupted from None
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _signalled(self, task: "asyncio.Future[T]") -> None:
        if self._is_stopping:
            self._reporter.say("already stopping: what runs is ended in order, wait a moment")
            return
        self._is_stopping = True
        task.cancel()
        self._reporter.say("stopping in order")  # which fails where nobody reads any more


def _heeded() -> tuple[signal.Signals, ...]:
    """With the one of a closed terminal, unless `nohup` has had it ignored."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return NUMBERS
    return (*NUMBERS, signal.SIGHUP)
