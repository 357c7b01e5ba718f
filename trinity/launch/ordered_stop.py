"""Graceful shutdown of a run on Ctrl-C, SIGTERM or a closed terminal, however often they come."""

import asyncio
import signal
from collections.abc import Awaitable
from typing import TypeVar

from trinity.launch.preparing import Says

T = TypeVar("T")
NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """The user pressed Ctrl-C."""


class OrderedStop:
    """Turns the first signal into a cancellation; a shutdown in progress is never cut short.

    Every signal is answered with a line at once: a shutdown takes seconds, and silence invites a
    kill.

        stop = OrderedStop(reporter)
        await stop.guard(work())   # raises Interrupted after work() has shut down
    """

    def __init__(self, reporter: Says) -> None:
        self._reporter = reporter
        self._is_stopping = False

    def begins(self) -> None:
        """Marks that the work is stopping by itself: it has finished, or failed."""
        self._is_stopping = True

    async def guard(self, work: Awaitable[T]) -> T:
        """Awaits the work.

        Raises: Interrupted when a signal has ended it.
        """
        task = asyncio.ensure_future(work)
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
        self._reporter.say("stopping in order")  # fails if the terminal is closed


def _heeded() -> tuple[signal.Signals, ...]:
    """Returns the handled signals; SIGHUP is included unless `nohup` has ignored it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return NUMBERS
    return (*NUMBERS, signal.SIGHUP)
