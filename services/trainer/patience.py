"""Calls that outlast a peer's restart: they wait under a name, up to a deadline or a stop."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import grpc

from trinity.errors import PreconditionFailed, RunFailed

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
AWAY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


class StopRequested(Exception):
    """The service asked this rank to stop while it waited."""


class WaitReport(Protocol):
    """Says who waits for what; an empty peer says that the wait is over."""

    def __call__(self, waits_for: str, reason: str, deadline_seconds: float) -> None: ...


class Patience:
    """Retries calls to one peer.

    patience = Patience(peer="buffer", seconds=3600, stop=stop, report=report)
    patience.call(lambda: stub.OpenStage(request, timeout=10))
    """

    def __init__(
        self, *, peer: str, seconds: float, stop: threading.Event, report: WaitReport
    ) -> None:
        self._peer = peer
        self._seconds = seconds
        self._stop = stop
        self._report = report

    def call(self, attempt: Callable[[], T]) -> T:
        """The answer of the first attempt that reaches the peer.

        Raises: RunFailed when the peer stays away too long or refuses, PreconditionFailed when this
        caller's state is gone, StopRequested.
        """
        deadline = time.monotonic() + self._seconds
        pause = FIRST_PAUSE_SECONDS
        waiting = False
        while True:
            try:
                answer = attempt()
            except grpc.RpcError as error:
                self._give_up_if_hopeless(error, deadline)
                waiting = True
                left = deadline - time.monotonic()
                self._report(self._peer, f"the {self._peer} does not answer", left)
                self.pause(min(pause, left))
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                if waiting:
                    self._report("", "", 0.0)
                return answer

    def pause(self, seconds: float) -> None:
        """Wait, unless told to stop.

        Raises: StopRequested.
        """
        if self._stop.wait(max(seconds, 0.0)):
            raise StopRequested

    def _give_up_if_hopeless(self, error: grpc.RpcError, deadline: float) -> None:
        code, details = error.code(), error.details()
        if self._stop.is_set():
            raise StopRequested from error
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            raise PreconditionFailed(details) from error
        if code not in AWAY:
            raise RunFailed(f"the {self._peer} refused a call of the trainer: {details}") from error
        logger.warning("a peer does not answer", extra={"peer": self._peer, "reason": details})
        if time.monotonic() >= deadline:
            raise RunFailed(
                f"the {self._peer} did not answer for {self._seconds:.0f} s "
                f"(`synchronizer.sync_timeout`): {details}"
            ) from error
