"""An event loop in a thread, for code that has none or whose own one runs already."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TypeVar

ValueT = TypeVar("ValueT")
CLOSE_SECONDS = 20.0


class BackgroundLoop:
    """Runs calls in a thread, for code that has no event loop, or whose own is busy.

    loop = BackgroundLoop()
    try:
        answer = loop.wait_for(ask())
    finally:
        loop.close()
    """

    def __init__(self, answer_seconds: float | None = None) -> None:
        """Takes the longest time of a call that is waited for; None is no limit."""
        self._answer_seconds = answer_seconds
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="trinity-calls", daemon=True
        )
        self._thread.start()

    def start(self, work: Coroutine[object, object, ValueT]) -> Future[ValueT]:
        """Starts something; it is cancelled when the loop is closed."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait_for(
        self, work: Coroutine[object, object, ValueT], seconds: float | None = None
    ) -> ValueT:
        """Runs the work and returns its result; an interrupt of the caller cancels it.

        Raises: TimeoutError after `seconds`; the work is cancelled then.
        """
        future = self.start(work)
        try:
            return future.result(self._answer_seconds if seconds is None else seconds)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancels everything, waits for its clean-up, and ends the thread."""
        if self._loop.is_closed():
            return
        ending = self.start(self._cancel_all())
        try:
            ending.result(CLOSE_SECONDS)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_SECONDS)
            if not self._thread.is_alive():
                self._loop.close()

    async def _cancel_all(self) -> None:
        own = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
