"""Calls of the model within one attempt: they end with it, and may come from other threads."""

import asyncio
import concurrent.futures
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class AttemptOver(asyncio.CancelledError):
    """The attempt's time is over or its lease is lost, so its calls get no more tokens.

    It is not an Exception, so that it also ends a workflow that retries after any Exception.
    """

    def __init__(self) -> None:
        super().__init__("this attempt is over")


class AttemptCalls:
    """Registers the calls in progress of one attempt, on the event loop that makes them.

    After `close` no call begins, and those in progress are cancelled: the engine may hold other
    weights by then.

    calls = AttemptCalls()
    with calls.in_progress():
        generation = await generator.generate(...)
    await calls.close()
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._pending: set[asyncio.Task[object]] = set()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """True if the attempt is over."""
        return self._is_closed

    def require_open(self) -> None:
        """Raises AttemptOver after `close`."""
        if self._is_closed:
            raise AttemptOver

    @contextmanager
    def in_progress(self) -> Iterator[None]:
        """Registers the current task for the block's call of the engine; `close` may cancel it."""
        task = asyncio.current_task()
        assert task is not None
        self._pending.add(task)
        try:
            self.require_open()
            yield
        finally:
            self._pending.discard(task)

    def refuse(self) -> None:
        """Ends the attempt for calls that have not begun."""
        self._is_closed = True

    async def close(self) -> None:
        """Ends the attempt: cancels calls in progress and refuses new ones."""
        self.refuse()
        pending = list(self._pending)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)

    async def await_elsewhere(self, call: Coroutine[object, object, T]) -> T:
        """Awaits a call from another event loop, that of a workflow in a thread."""
        future = self._submitted(call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancelled() and self._is_closed:
                raise AttemptOver from None
            future.cancel()
            raise

    def wait_in_thread(self, call: Coroutine[object, object, T]) -> T:
        """Waits for a call in a thread that is not the event loop's."""
        future = self._submitted(call)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise AttemptOver from None

    def _submitted(self, call: Coroutine[object, object, T]) -> "concurrent.futures.Future[T]":
        if self._is_closed:
            call.close()
            raise AttemptOver
        return asyncio.run_coroutine_threadsafe(call, self._loop)
