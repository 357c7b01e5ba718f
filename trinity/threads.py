"""Calls that block, in daemon threads: none of them keeps a process from ending."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class DaemonThreads:
    """Runs calls beside the event loop, at most `max_threads` at a time; the others queue up.

    A thread cannot be stopped. When the awaiting task is cancelled, a call that waits is dropped;
    one that runs goes on as a lost one, and another thread may take its place.

        threads = DaemonThreads(name="reward", max_threads=32)
        score = await threads.run(lambda: judge(response))
    """

    def __init__(self, *, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._queue: deque[_Call[Any]] = deque()
        self._num_threads = 0
        self._lost: set[_Call[Any]] = set()

    @property
    def num_lost(self) -> int:
        """Threads that still run what nobody waits for any more."""
        with self._lock:
            return len(self._lost)

    async def run(self, function: Callable[[], T], on_begin: Callable[[], None] | None = None) -> T:
        """The result of `function`; `on_begin` is called on the event loop when its turn comes."""
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
        """Under the lock: a thread for each call that may run."""
        while self._queue and self._num_threads < self._max_threads:
            self._num_threads += 1
            call = self._queue.popleft()
            threading.Thread(target=self._work, args=(call,), daemon=True, name=self._name).start()

    def _abandon(self, call: "_Call[T]") -> None:
        with self._lock:
            if call in self._queue:
                self._queue.remove(call)
            elif not call.is_over:
                self._lost.add(call)
                self._num_threads -= 1
                self._start_threads()

    def _work(self, call: "_Call[Any]") -> None:
        """One call after the other, until there is none or the last one was lost."""
        while True:
            call.run()
            with self._lock:
                call.is_over = True
                if call in self._lost:
                    self._lost.remove(call)
                    return
                if not self._queue:
                    self._num_threads -= 1
                    return
                call = self._queue.popleft()


class _Call(Generic[T]):
    """One call, and the promise of its result."""

    def __init__(self, function: Callable[[], T], on_begin: Callable[[], None] | None) -> None:
        self.is_over = False
        self._function = function
        self._on_begin = on_begin
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = self._loop.create_future()

    def run(self) -> None:
        """In the thread; whatever ends the call goes to whoever awaits it."""
        self._tell(self._begin)
        try:
            value = self._function()
        except Exception as error:
            self._tell(self._fail, error)
        except BaseException as error:  # such as SystemExit, which must not end the event loop
            self._tell(self._fail, RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            self._tell(self._succeed, value)

    def _begin(self) -> None:
        if self._on_begin is not None and not self.result.done():
            self._on_begin()

    def _succeed(self, value: T) -> None:
        if not self.result.done():
            self.result.set_result(value)

    def _fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)

    def _tell(self, function: Callable[..., None], *args: object) -> None:
        """A loop that has ended needs no news."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)


async def in_daemon_thread(function: Callable[[], T]) -> T:
    """The result of `function`, such as an import of many seconds, in a thread of its own."""
    return await DaemonThreads(name="call", max_threads=1).run(function)
