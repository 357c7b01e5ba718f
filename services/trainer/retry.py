"""Retries calls to a peer that is away or not ready, and reports the waits to the service."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from services.trainer.messages import RankWaiting
from trinity.errors import RunFailed, Superseded, Unavailable
from trinity.runtime.retry import Retry, RetryWait, WaitReporter
from trinity.runtime.rpc.errors import error_of

logger = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")
ASK_AGAIN_SECONDS = 1.0


class RankWaitReporter:
    """A rank's waits; thread-safe."""

    def __init__(self, send: Callable[[RankWaiting], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._open: set[str] = set()

    def set(self, name: str, *, waits_for: str, reason: str, deadline_seconds: float = 0.0) -> None:
        """Reports that the wait of this name continues."""
        with self._lock:
            self._open.add(name)
        self._send(
            RankWaiting(
                name=name, waits_for=waits_for, reason=reason, deadline_seconds=deadline_seconds
            )
        )

    def clear(self, name: str) -> None:
        """Reports that the wait of this name is over, if it was open."""
        with self._lock:
            is_open = name in self._open
            self._open.discard(name)
        if is_open:
            self._send(RankWaiting(name=name))


class StopRequested(Exception):
    """The service asked this rank to stop while it waited."""


class RpcRetry:
    """Calls one peer, and retries while it is away or not yet ready, for `seconds` at most.

    retry = RpcRetry(peer="buffer", seconds=3600, stop=stop, waits=waits)
    retry.call(lambda: stub.FinishTraining(request, timeout=10))
    """

    def __init__(
        self, *, peer: str, seconds: float, stop: threading.Event, waits: WaitReporter
    ) -> None:
        self._peer = peer
        self._seconds = seconds
        self._stop = stop
        self._waits = waits

    def call(self, attempt: Callable[[], ValueT]) -> ValueT:
        """Returns the answer of the first attempt that reaches the peer.

        Raises: the error that a refusal stands for (Superseded when a newer incarnation exists),
        RunFailed when the peer stays away too long, StopRequested.
        """
        prefix = f"the {self._peer} does not answer: "
        retry = Retry(
            seconds=self._seconds,
            timeout_error=self._timeout_error,
            log=lambda reason: logger.warning(
                "call failed, retrying", extra={"reason": prefix + reason}
            ),
            prefix=prefix,
            wait=RetryWait(reporter=self._waits, name=f"{self._peer} away", waits_for=self._peer),
        )
        retry.start()
        return retry.call(lambda: self._translate_errors(attempt), self._sleep)

    def call_until_ready(
        self,
        attempt: Callable[[], ValueT],
        not_ready_reason: Callable[[ValueT], str | None],
        *,
        seconds: float | None = None,
    ) -> ValueT:
        """Returns the first answer for which `not_ready_reason` gives no reason to ask again.

        Raises: as `call`; also RunFailed when the peer is not ready in time, or in `seconds`.
        """
        limit = self._seconds if seconds is None else seconds
        wait = RetryWait(reporter=self._waits, name=f"{self._peer} not ready", waits_for=self._peer)
        deadline = time.monotonic() + limit
        try:
            while True:
                answer = self.call(attempt)
                reason = not_ready_reason(answer)
                if reason is None:
                    return answer
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RunFailed(
                        f"the {self._peer} was not ready for {limit:.0f} s "
                        f"(`synchronizer.sync_timeout`): {reason}"
                    )
                wait.show(reason, limit)
                self._sleep(min(ASK_AGAIN_SECONDS, left))
        finally:
            wait.clear()

    def _sleep(self, seconds: float) -> None:
        """Sleeps, unless told to stop.

        Raises: StopRequested.
        """
        if self._stop.wait(max(seconds, 0.0)):
            raise StopRequested

    def _translate_errors(self, attempt: Callable[[], ValueT]) -> ValueT:
        """Calls the peer; a refusal becomes one of our errors, which names the peer."""
        try:
            return attempt()
        except grpc.RpcError as error:
            if self._stop.is_set():
                raise StopRequested from error
            meaning = error_of(error)
            if isinstance(meaning, Superseded | Unavailable):
                raise meaning from error
            raise type(meaning)(f"the {self._peer} refused: {meaning}") from error

    def _timeout_error(self, reason: str) -> RunFailed:
        return RunFailed(
            f"the {self._peer} did not answer for {self._seconds:.0f} s "
            f"(`synchronizer.sync_timeout`): {reason}"
        )
