"""Numbered calls between two processes, as messages: any number of them may be open at a time.

A call is `{"call": 7, "function": "chat", "streams": false, ...}`. It is answered by
`{"reply": 7, "value": ...}`, `{"reply": 7, "raised": "ValueError", "text": "..."}` or
`{"reply": 7, "is_over": true}`, before that by any number of `{"delta": 7, ...}` if it streams.
`{"call": 7, "is_given_up": true}` ends it early.
"""

import asyncio
import builtins
import concurrent.futures
import itertools
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from trinity.errors import Unavailable, UserError

Message = dict[str, Any]
Reply = concurrent.futures.Future[Any]
Write = Callable[[Mapping[str, object]], None]
OnDelta = Callable[[Message], None]
"""Receives a part of a reply before it is complete."""


class OpenCalls:
    """The calling side: `call` from any thread, `receive` from the one that reads.

    calls = OpenCalls(write)
    reply = calls.call("decode", tokens=[1, 2])   # written; a future that any thread may await
    calls.receive({"reply": 0, "value": "a b"})
    """

    def __init__(
        self,
        write: Write,
        *errors: type[Exception],
        over: Callable[[], BaseException] = asyncio.CancelledError,
    ) -> None:
        """`errors` keep their class, as Python's own do; `over` makes the error of `is_over`."""
        self._write = write
        self._errors: dict[str, type[Exception]] = {
            kind.__name__: kind for kind in (*errors, UserError, Unavailable)
        }
        self._over = over
        self._numbers = itertools.count()
        self._open: dict[int, tuple[Reply, OnDelta | None]] = {}

    def call(self, function: str, on_delta: OnDelta | None = None, **values: object) -> Reply:
        """Makes a call; the future has its reply or its error, and its cancellation ends it."""
        number, reply = next(self._numbers), Reply()
        self._open[number] = reply, on_delta
        self._write(
            {"call": number, "function": function, "streams": on_delta is not None, **values}
        )
        reply.add_done_callback(partial(self._give_up_if_cancelled, number))
        return reply

    def receive(self, message: Message) -> None:
        """Passes on a reply, or a part of one."""
        if "delta" in message:
            _, on_delta = self._open.get(message["delta"], (None, None))
            if on_delta is not None:
                on_delta(message)
            return
        reply, _ = self._open.pop(message["reply"], (None, None))
        if reply is None or not reply.set_running_or_notify_cancel():
            return
        if "is_over" in message:
            reply.set_exception(self._over())
        elif "raised" in message:
            reply.set_exception(self._error(message["raised"], message["text"]))
        else:
            reply.set_result(message["value"])

    def fail(self, failure: BaseException) -> None:
        """Fails all open calls."""
        while self._open:
            _, (reply, _) = self._open.popitem()
            if reply.set_running_or_notify_cancel():
                reply.set_exception(failure)

    def _give_up_if_cancelled(self, number: int, reply: Reply) -> None:
        if reply.cancelled() and self._open.pop(number, None) is not None:
            self._write({"call": number, "is_given_up": True})

    def _error(self, kind: str, text: str) -> Exception:
        known = self._errors.get(kind, vars(builtins).get(kind))
        if isinstance(known, type) and issubclass(known, Exception):
            return known(text)
        return RuntimeError(f"{kind}: {text}")


class CallServer:
    """The side that answers, on an event loop; calls begin in the order in which they come.

    calls = CallServer(value_of, worker.write)
    calls.accept({"call": 0, "function": "chat", ...})   # awaits value_of(message, send_delta)
    await calls.close()                                  # cancels those that are open
    """

    def __init__(
        self, value: Callable[[Message, OnDelta], Awaitable[object]], write: Write
    ) -> None:
        self._value = value
        self._write = write
        self._open: dict[int, asyncio.Task[None]] = {}

    def accept(self, message: Message) -> None:
        """Begins to answer a call, or ends one that was given up."""
        number = message["call"]
        if "function" in message:
            task = self._open[number] = asyncio.create_task(self._answer(number, message))
            task.add_done_callback(lambda _: self._open.pop(number))
        elif number in self._open:
            self._open[number].cancel()

    async def close(self) -> None:
        """Cancels the open calls."""
        tasks = list(self._open.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _answer(self, number: int, message: Message) -> None:
        def send_delta(part: Message) -> None:
            self._write({"delta": number, **part})

        try:
            answer: Message = {"value": await self._value(message, send_delta)}
        except asyncio.CancelledError:
            answer = {"is_over": True}
        except Exception as error:  # its caller decides what it means
            answer = {"raised": type(error).__name__, "text": str(error)}
        self._write({"reply": number, **answer})
