"""The thread in which Studio talks to services, so that pages never wait for a network."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TypeVar

ValueT = TypeVar("ValueT")
ANSWER_SECONDS = 15.0
"""A page gives up on an answer after this time."""
CLOSE_SECONDS = 20.0


class BackgroundLoop:
    """An event loop in a separate thread that lives as long as Studio.

    loop = BackgroundLoop()
    try:
        answer = loop.wait_for(ask())
    finally:
        loop.close()
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="studio", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[object, object, ValueT]) -> "Future[ValueT]":
        """Starts something; it is cancelled when the loop is closed."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait_for(
        self, work: Coroutine[object, object, ValueT], seconds: float = ANSWER_SECONDS
    ) -> ValueT:
        """Runs the work and returns its result.

        Raises: TimeoutError after `seconds`; the work is cancelled then.
        """
        future = self.start(work)
        try:
            return future.result(seconds)
        except TimeoutError:
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
