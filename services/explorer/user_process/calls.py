"""Calls that a process of users' code makes of the explorer while it answers a request."""

import builtins
import concurrent.futures
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from trinity.errors import UserError
from trinity.runtime.logs import LibraryFilter
from trinity.runtime.process.channel import RequestChannel
from trinity.user_code.values import LineSender

Json = dict[str, Any]
Reply = concurrent.futures.Future[Any]
MAKES_CALLS = "workflow"
"""The kind of request during which a process calls the explorer."""
OnDelta = Callable[[Json], None]
"""Receives a part of a reply before it is complete."""


class CallChannel(RequestChannel):
    """Requests of the explorer, and calls that this process makes of it while it answers one.

    From the first workflow on a thread reads the lines, so that calls of several threads or tasks
    may be open at a time; rewards make no calls and are spared the way through it. Lines that
    users' code logs are sent to the explorer, which knows whose run it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._requests: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._open: dict[int, tuple[Reply, OnDelta | None]] = {}

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

    def call(self, function: str, on_delta: OnDelta | None = None, **values: object) -> Reply:
        """Asks the explorer; the future has its reply, or raises the error of the call."""
        number, reply = next(self._numbers), Reply()
        self._open[number] = reply, on_delta
        self.write(
            {"call": number, "function": function, "streams": on_delta is not None, **values}
        )
        return reply

    def _read(self) -> None:
        for message in super().requests():
            if "reply" in message:
                self._settle(message)
            elif "delta" in message:
                _, on_delta = self._open.get(message["delta"], (None, None))
                if on_delta is not None:
                    on_delta(message)
            else:
                self._requests.put(message)
        self._requests.put(None)

    def _settle(self, message: Json) -> None:
        reply, _ = self._open.pop(message["reply"])
        if message.get("is_over"):
            from trinity.workflows.generation import AttemptOver

            reply.set_exception(AttemptOver())
        elif "raised" in message:
            reply.set_exception(_error(message["raised"], message["text"]))
        else:
            reply.set_result(message["value"])


def _error(kind: str, text: str) -> Exception:
    """Returns an error of the same class, where the class is known here."""
    if kind == UserError.__name__:
        return UserError(text)
    known = vars(builtins).get(kind)
    if isinstance(known, type) and issubclass(known, Exception):
        return known(text)
    return RuntimeError(f"{kind}: {text}")
