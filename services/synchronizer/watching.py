"""Streams of the current state, read at the start and after each change; changes do not queue."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from trinity.errors import Unavailable
from trinity.runtime.notifications import Listener

logger = logging.getLogger(__name__)

StateT = TypeVar("StateT")
_RETRY_SECONDS = 1.0


class WatchStreams:
    """Open streams, which all end with an error when the service stops.

    A stream keeps only the state that it sent last: a slow client skips intermediate states.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._closed = False

    def close_streams(self) -> None:
        """Ends every stream; clients reopen theirs at another replica."""
        self._closed = True
        self._listener.wake_all()

    async def stream(
        self, topic: str, read: Callable[[], Awaitable[StateT]]
    ) -> AsyncGenerator[StateT, None]:
        """Yields the current state, and the new one after each change of it.

        Raises: Unavailable when the database is unreachable at the start, or the service stops.
        """
        with self._listener.subscribe(topic) as changes:
            last = await read()
            yield last
            timeout_seconds: float | None = None
            while True:
                self._check_open()
                await changes.wait(timeout_seconds)
                self._check_open()
                try:
                    now = await read()
                except Unavailable:
                    timeout_seconds = _RETRY_SECONDS
                    continue
                timeout_seconds = None
                if now != last:
                    last = now
                    yield now

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the synchronizer is stopping; open the stream again")
