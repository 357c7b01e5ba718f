"""Decides if a broken stream is opened again."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

# Codes that only mean that a service is being restarted.
PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
REFUSED_SECONDS = 60.0
"""Time that a file may hold a refused token before a new one is there."""


@dataclass(slots=True)
class Reopening:
    """Tolerates outages, and the expiry of the token that a stream was opened with.

    The file may hold a new token by then. Only a client that is refused for a minute, each time
    that it opens a stream, has none.

    reopening.opened()
    try:
        async for answer in stream: reopening.heard()
    except grpc.aio.AioRpcError as error:
        reopening.check(error)
    """

    clock: Callable[[], float] = time.monotonic
    _opened_at: float = 0.0
    _was_heard: bool = False
    _refused_since: float | None = None

    def opened(self) -> None:
        """Records that a stream is opened now."""
        self._opened_at, self._was_heard = self.clock(), False

    def heard(self) -> None:
        """Records an answer: the token was accepted."""
        self._was_heard, self._refused_since = True, None

    def check(self, error: grpc.aio.AioRpcError) -> None:
        """Returns when the stream should be opened again.

        Raises: the error, if opening it again would not help.
        """
        if error.code() in PASSING:
            self._refused_since = None
            return
        if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
            raise error
        now = self.clock()
        if self._was_heard or now - self._opened_at > REFUSED_SECONDS:
            self._refused_since = None  # it was open, so this is the end of its token
            return
        if self._refused_since is None:
            self._refused_since = now
        if now - self._refused_since > REFUSED_SECONDS:
            raise error
