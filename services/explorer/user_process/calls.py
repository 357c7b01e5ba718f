"""Calls that a process of users' code makes of the explorer while it answers a request."""

import logging
import queue
import threading
from collections.abc import Iterator
from typing import Any

from trinity.runtime.logs import LibraryFilter
from trinity.runtime.process.calls import OpenCalls
from trinity.runtime.process.channel import RequestChannel
from trinity.user_code.values import LineSender

Json = dict[str, Any]
MAKES_CALLS = "workflow"
"""The kind of request during which a process calls the explorer."""


class CallChannel(RequestChannel):
    """Requests of the explorer, and calls that this process makes of it while it answers one.

    From the first workflow on a thread reads the lines, so that calls of several threads or tasks
    may be open at a time; rewards make no calls and are spared the way through it. Lines that
    users' code logs are sent to the explorer, which knows whose run it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._requests: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        self.calls = OpenCalls(self.write, over=_attempt_over)

    def configure_logging(self) -> None:
        """Sends the log to the explorer."""
        super().configure_logging()
        sender = LineSender(self.write)
        sender.addFilter(LibraryFilter())
        logging.getLogger().handlers[:] = [sender]

    def requests(self) -> Iterator[Json]:
        """Yields the requests, until there are no more."""
        for request in super().requests():
            if request["kind"] == MAKES_CALLS:
                yield from self._requests_among_replies(request)
                return
            yield request

    def _requests_among_replies(self, first: Json) -> Iterator[Json]:
        threading.Thread(target=self._read, name="explorer", daemon=True).start()
        yield first
        while (request := self._requests.get()) is not None:
            yield request

    def _read(self) -> None:
        for message in super().requests():
            if "reply" in message or "delta" in message:
                self.calls.receive(message)
            else:
                self._requests.put(message)
        self._requests.put(None)


def _attempt_over() -> BaseException:
    from trinity.workflows.generation import AttemptOver  # imports more than rewards need

    return AttemptOver()
