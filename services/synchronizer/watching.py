"""Streams of what is now: a reader is called at the start and after each change, never queued."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from trinity.errors import Unavailable
from trinity.notifications import Listener

logger = logging.getLogger(__name__)

StateT = TypeVar("StateT")
_RETRY_SECONDS = 1.0


class Watching:
    """Open streams, which end together with an error when the service stops.

    A stream holds no more than the state it sent last: a slow client skips what it missed.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._closed = False

    def close(self) -> None:
        """End every stream; clients reopen theirs elsewhere."""
        self._closed = True
        self._listener.wake_all()

    async def states(
        self, topic: str, read: Callable[[], Awaitable[StateT]]
    ) -> AsyncGenerator[StateT, None]:
        """Yield the state now and after each change that shows in it.

        Raises: Unavailable when the database is away at the start, or when the service stops.
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
