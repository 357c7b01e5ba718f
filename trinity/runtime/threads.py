"""Blocking calls in daemon threads, which never keep a process from exiting; cancellation.

This file uses one of asyncio's insides, `tasks._unregister_task`, as Python 3.11 to 3.14 have it;
tests/unit/runtime/test_library_internals.py fails with another version.
"""

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

ValueT = TypeVar("ValueT")


MAX_ABANDONED = 256
"""Limit of abandoned threads; each keeps the arguments that it was called with."""


class TooManyAbandonedThreads(RuntimeError):
    """Too many threads run abandoned calls; no further one is started."""


class DaemonThreads:
    """Runs calls in threads, at most `max_threads` at a time; the others queue up.

    A thread cannot be stopped. When the awaiting task is cancelled, a queued call is dropped; a
    running one is abandoned: it continues, and another thread may take its place. There are never
    more than `max_abandoned` threads; once all of them run abandoned calls, calls are refused.

        threads = DaemonThreads(name="reward", max_threads=32)
        score = await threads.run_in_thread(lambda: judge(response))
    """

    def __init__(self, *, name: str, max_threads: int, max_abandoned: int = MAX_ABANDONED) -> None:
        self._name = name
        self._max_threads = max_threads
        self._max_abandoned = max_abandoned
        self._lock = threading.Lock()
        self._queue: deque[_Call[Any]] = deque()
        self._running: set[_Call[Any]] = set()
        self._abandoned: set[_Call[Any]] = set()

    @property
    def num_abandoned(self) -> int:
        """The number of threads that still run an abandoned call."""
        with self._lock:
            return len(self._abandoned)

    async def run_in_thread(
        self, function: Callable[[], ValueT], on_begin: Callable[[], None] | None = None
    ) -> ValueT:
        """Returns the result of `function`; `on_begin` is called on the event loop when it starts.

        Raises: TooManyAbandonedThreads.
        """
        call = _Call(function, on_begin)
        with self._lock:
            self._queue.append(call)
            self._start_threads()
        try:
            return await call.result
        except asyncio.CancelledError:
            self._abandon(call)
            raise

    def _start_threads(self) -> None:
        """Starts a thread for each call that may run; call it under the lock."""
        while len(self._running) < self._num_allowed and (call := self._next()) is not None:
            self._running.add(call)
            threading.Thread(target=self._work, args=(call,), daemon=True, name=self._name).start()
        if not self._num_allowed:
            while (call := self._next()) is not None:
                call.refuse(self._refusal())

    @property
    def _num_allowed(self) -> int:
        """The number of calls that may run."""
        return min(self._max_threads, self._max_abandoned - len(self._abandoned))

    def _next(self) -> "_Call[Any] | None":
        """Returns the first queued call that is still awaited; call it under the lock.

        Calls that time out together are cancelled before any of them is abandoned.
        """
        while self._queue:
            call = self._queue.popleft()
            if not call.result.cancelled():
                return call
        return None

    def _abandon(self, call: "_Call[ValueT]") -> None:
        with self._lock:
            if call in self._running:
                self._running.remove(call)
                self._abandoned.add(call)
                self._start_threads()
            elif call in self._queue:
                self._queue.remove(call)

    def _work(self, first: "_Call[Any]") -> None:
        """Runs calls one by one until the queue is empty or the last one was abandoned."""
        call: _Call[Any] | None = first
        while call is not None:
            call.run_call()
            with self._lock:
                if call in self._abandoned:
                    self._abandoned.remove(call)
                    self._start_threads()
                    return
                self._running.remove(call)
                call = self._next()
                if call is not None:
                    self._running.add(call)

    def _refusal(self) -> TooManyAbandonedThreads:
        return TooManyAbandonedThreads(
            f"{self._max_abandoned} threads still run a {self._name} whose caller has given up, "
            f"and no further one is started: set a time limit for every wait of a {self._name}"
        )


class _Call(Generic[ValueT]):
    """One call and the future of its result."""

    def __init__(self, function: Callable[[], ValueT], on_begin: Callable[[], None] | None) -> None:
        self._function = function
        self._on_begin = on_begin
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[ValueT] = self._loop.create_future()

    def run_call(self) -> None:
        """Runs the call in the thread; its result or error goes to the awaiting task."""
        self._notify_loop(self._begin)
        try:
            value = self._context.run(self._function)
        except Exception as error:
            self._notify_loop(self._fail, error)
        except BaseException as error:  # such as SystemExit, which must not end the event loop
            self._notify_loop(self._fail, RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            self._notify_loop(self._succeed, value)

    def refuse(self, error: Exception) -> None:
        """Fails the call: it will never run."""
        self._notify_loop(self._fail, error)

    def _begin(self) -> None:
        if self._on_begin is not None and not self.result.done():
            self._on_begin()

    def _succeed(self, value: ValueT) -> None:
        if not self.result.done():
            self.result.set_result(value)

    def _fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)

    def _notify_loop(self, function: Callable[..., None], *args: object) -> None:
        """Calls `function` on the event loop, unless that has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)


def is_being_cancelled() -> bool:
    """Returns true if the current task was cancelled, not merely something that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def in_daemon_thread(function: Callable[[], ValueT]) -> ValueT:
    """Runs `function`, such as an import of many seconds, in its own thread."""
    return await DaemonThreads(name="call", max_threads=1).run_in_thread(function)


def abandon_task(task: asyncio.Task[Any]) -> None:
    """Makes the closing event loop ignore a task that does not end when it is cancelled.

    `asyncio.run` would never stop waiting for it, and there is no public way to remove a task.
    """
    asyncio.tasks._unregister_task(task)
