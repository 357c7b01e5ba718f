"""Retries of calls to a peer that is away: growing pauses, a deadline, and one visible wait.

Only `Unavailable` is retried; every other error is a refusal and is raised at once.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import grpc

from trinity.errors import NotReady, RolloutStageFailed, RunFailed, Superseded, Unavailable
from trinity.runtime.members import WaitKind
from trinity.runtime.rpc.errors import error_of

if TYPE_CHECKING:
    from trinity.runtime.presence import WaitRegistry

logger = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 0.5
"""A killed service is back within seconds, and a retry costs it little."""
ASK_AGAIN_SECONDS = 1.0
"""Pause before the next call to a peer that was not ready."""


class WaitReporter(Protocol):
    """Accepts waits by name; `trinity.runtime.presence.WaitRegistry` is one."""

    def set(
        self,
        name: str,
        *,
        waits_for: str,
        reason: str,
        deadline_seconds: float = 0.0,
        kind: WaitKind = WaitKind.STATE,
        experiment_id: str = "",
    ) -> None: ...

    def clear(self, name: str) -> None: ...


def wait_kind_of(error: BaseException) -> WaitKind:
    """Returns what has to happen before a failed call succeeds."""
    is_silent = isinstance(error, Unavailable) and not isinstance(error, NotReady)
    return WaitKind.NO_ANSWER if is_silent else WaitKind.STATE


class StopRequested(Exception):
    """The service asked this process to stop while it waited."""


@asynccontextmanager
async def deadline(seconds: float, error: Exception) -> AsyncIterator[None]:
    """Raises `error` if the block takes longer; a TimeoutError of the block's own passes."""
    limit = asyncio.timeout(seconds if math.isfinite(seconds) else None)
    try:
        async with limit:
            yield
    except TimeoutError as timeout:
        if not limit.expired():
            raise
        raise error from timeout


@dataclass(slots=True, kw_only=True)
class Retry:
    """Consecutive failures of one operation, which is tried again until a deadline.

    retry = Retry(seconds=60.0, timeout_error=RunFailed)
    lease = await retry.call_async(buffer.lease)  # again for as long as it raises Unavailable

    The deadline counts from the first failure, or from `start`. `end` resets it: the operation
    works again, or it got further than before.
    """

    seconds: float
    timeout_error: Callable[[str], Exception]
    """Makes the error that is raised at the deadline, of the newest failure's text."""
    refusals: tuple[type[Exception], ...] = ()
    """Kinds of Unavailable that are raised at once."""
    waits: WaitReporter | None = None
    """Shows the failures as the wait `name`."""
    name: str = ""
    waits_for: str = ""
    prefix: str = ""
    """Precedes failures in the wait and the log."""
    log_level: int = logging.DEBUG
    """Level of the line that is logged for each failure whose text is another one."""
    first_pause_seconds: float = FIRST_PAUSE_SECONDS
    max_pause_seconds: float = MAX_PAUSE_SECONDS
    cut_last_pause: bool = True
    """Ends the last pause at the deadline; otherwise a pause that would pass it is not started."""
    clock: Callable[[], float] = time.monotonic
    _started_at: float | None = None
    _reason: str = ""
    _pause_seconds: float = 0.0
    """The last pause; 0 before the first."""

    def start(self) -> None:
        """Lets the deadline count from now."""
        self._started_at = self.clock()

    def record_failure(self, error: Exception) -> None:
        """Shows the newest failure; logs it if its text is another one.

        Raises: the error if it is a refusal; the timeout error when there is no time for another
        attempt.
        """
        if isinstance(error, self.refusals):
            raise error
        reason = str(error)
        if self._started_at is None:
            self.start()
        left = self._seconds_left
        if left <= 0 or (left < self._growing_pause and not self.cut_last_pause):
            raise self.timeout_error(reason) from error
        shown, is_new, self._reason = self.prefix + reason, reason != self._reason, reason
        if is_new:
            logger.log(self.log_level, "call failed, retrying", extra={"reason": shown})
        if self.waits is not None:
            limit = self.seconds if math.isfinite(self.seconds) else 0.0
            self.waits.set(
                self.name,
                waits_for=self.waits_for,
                reason=shown,
                deadline_seconds=limit,
                kind=wait_kind_of(error),
            )

    def next_pause(self) -> float:
        """Returns the seconds until the next attempt: longer each time, but cut at the deadline."""
        self._pause_seconds = self._growing_pause
        return min(self._pause_seconds, max(self._seconds_left, 0.0))

    def end(self) -> None:
        """Forgets the failures and clears the wait."""
        self._started_at, self._reason, self._pause_seconds = None, "", 0.0
        if self.waits is not None:
            self.waits.clear(self.name)

    def call(
        self, attempt: Callable[[], ValueT], sleep: Callable[[float], None] = time.sleep
    ) -> ValueT:
        """Returns the result of `attempt`, retrying for as long as it raises Unavailable.

        Raises: the timeout error; errors of `sleep`, which may stop the retries.
        """
        try:
            while True:
                try:
                    return attempt()
                except Unavailable as error:
                    self.record_failure(error)
                sleep(self.next_pause())
        finally:
            self.end()

    async def call_async(self, attempt: Callable[[], Awaitable[ValueT]]) -> ValueT:
        """Does the same for a coroutine; cancelling it ends the retries."""
        try:
            while True:
                try:
                    return await attempt()
                except Unavailable as error:
                    self.record_failure(error)
                await asyncio.sleep(self.next_pause())
        finally:
            self.end()

    @property
    def _growing_pause(self) -> float:
        return min(2 * self._pause_seconds or self.first_pause_seconds, self.max_pause_seconds)

    @property
    def _seconds_left(self) -> float:
        started_at = self.clock() if self._started_at is None else self._started_at
        return started_at + self.seconds - self.clock()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The deadline of waits and retries; infinite by default, which is for code outside of a stage.

    plan = await retry_policy.retry(read_plan, waits_for="synchronizer", purpose="read the plan")
    """

    waits: "WaitRegistry"
    seconds: float = math.inf

    @property
    def deadline_seconds(self) -> float:
        """The deadline as waits show it: 0 for no deadline."""
        return self.seconds if math.isfinite(self.seconds) else 0.0

    def deadline_error(self, waits_for: str, what: str) -> RolloutStageFailed:
        """Returns the error that ends a wait."""
        return RolloutStageFailed(f"waited {self.seconds:g} s for the {waits_for} {what}")

    def new_retry(self, *, waits_for: str, purpose: str) -> Retry:
        """Returns the retries of one operation, with a separate wait."""
        prefix = f"to {purpose}: "
        return Retry(
            seconds=self.seconds,
            timeout_error=lambda reason: self.deadline_error(waits_for, prefix + reason),
            waits=self.waits,
            name=f"{waits_for}: {purpose}",
            waits_for=waits_for,
            prefix=prefix,
            log_level=logging.WARNING,
        )

    async def retry(
        self, call: Callable[[], Awaitable[ValueT]], *, waits_for: str, purpose: str
    ) -> ValueT:
        """Returns the result of `call`, or raises RolloutStageFailed when that takes too long."""
        return await self.new_retry(waits_for=waits_for, purpose=purpose).call_async(call)


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcRetry:
    """Calls one peer from a thread, until it answers or `stop` is set, for `seconds` at most.

    retry = RpcRetry(peer="buffer", seconds=3600, stop=stop, waits=waits)
    retry.call(lambda: stub.FinishTraining(request, timeout=10))
    """

    peer: str
    seconds: float
    stop: threading.Event
    waits: WaitReporter

    def call(self, attempt: Callable[[], ValueT]) -> ValueT:
        """Returns the answer of the first attempt that reaches the peer.

        Raises: the error that a refusal stands for (Superseded when a newer incarnation exists),
        RunFailed when the peer stays away too long, StopRequested.
        """
        retry = self._new_retry("away", "did not answer", self.seconds)
        retry.prefix, retry.log_level = f"the {self.peer} does not answer: ", logging.WARNING
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

        def attempt_if_ready() -> ValueT:
            answer = self.call(attempt)
            if (reason := not_ready_reason(answer)) is not None:
                raise NotReady(reason)
            return answer

        limit = self.seconds if seconds is None else seconds
        retry = self._new_retry("not ready", "was not ready", limit)
        retry.first_pause_seconds = retry.max_pause_seconds = ASK_AGAIN_SECONDS
        return retry.call(attempt_if_ready, self._sleep)

    def _new_retry(self, state: str, failure: str, seconds: float) -> Retry:
        prefix = f"the {self.peer} {failure} for {seconds:.0f} s (`synchronizer.sync_timeout`): "
        retry = Retry(
            seconds=seconds,
            timeout_error=lambda reason: RunFailed(prefix + reason),
            waits=self.waits,
            name=f"{self.peer} {state}",
            waits_for=self.peer,
        )
        retry.start()
        return retry

    def _sleep(self, seconds: float) -> None:
        """Sleeps; raises StopRequested when told to stop."""
        if self.stop.wait(max(seconds, 0.0)):
            raise StopRequested

    def _translate_errors(self, attempt: Callable[[], ValueT]) -> ValueT:
        """Calls the peer; a refusal becomes one of our errors, which names the peer."""
        try:
            return attempt()
        except grpc.RpcError as error:
            if self.stop.is_set():
                raise StopRequested from error
            meaning = error_of(error)
            if isinstance(meaning, Superseded | Unavailable):
                raise meaning from error
            raise type(meaning)(f"the {self.peer} refused: {meaning}") from error
