"""Deadlines and retries of calls, the clock of runs, watch streams, and errors that end a stage."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Any, Generic, TypeVar

import grpc

from trinity.errors import RpcError, TrinityError, Unavailable, UserError
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import Retry, RetryWait
from trinity.runtime.rpc.errors import error_of

logger = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")
LEAST_WAIT_SECONDS = 0.05
"""A wait at a clock that stands still looks this often, or as often as it has time left."""
PAUSE_SECONDS = 0.5
SHOWN_AFTER_SECONDS = 1.0
FIRST_RESPONSE_SECONDS = 10.0
NO_RESPONSE = "it says nothing"
WORK_WAIT = "work"


class RolloutStageFailed(TrinityError):
    """The stage cannot go on here; the text is shown to users."""


_USER_FACING = (RolloutStageFailed, UserError, RpcError)


def user_message(error: BaseException) -> str | None:
    """Returns the text to show to users; None when any of the errors is unexpected."""
    leaves = list(leaves_of(error))
    if not all(isinstance(leaf, _USER_FACING) for leaf in leaves):
        return None
    return str(leaves[0])


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yields the errors in a group of them, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves_of(inner)
    else:
        yield error


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


class WorkClock:
    """Monotonic seconds without those in which no run could go on.

    clock = WorkClock()
    clock.stop()      # the trainer's turn
    clock.go_on()
    await clock.sleep(60.0)  # a minute of work
    """

    def __init__(self) -> None:
        self._lost = 0.0
        self._stopped_at: float | None = None

    def now(self) -> float:
        """Returns the seconds; only differences mean something."""
        at = time.monotonic() if self._stopped_at is None else self._stopped_at
        return at - self._lost

    def stop(self) -> None:
        """Stands still from now on."""
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()

    def go_on(self) -> None:
        """Goes on; does nothing if it did not stand still."""
        if self._stopped_at is not None:
            self._lost += time.monotonic() - self._stopped_at
            self._stopped_at = None

    async def sleep(self, seconds: float) -> None:
        """Returns once that much work was possible."""
        until = self.now() + seconds
        while (left := until - self.now()) > 0:  # noqa: ASYNC110 - no event ends it
            await asyncio.sleep(max(left, LEAST_WAIT_SECONDS))

    async def wait_for(self, task: asyncio.Task[Any], seconds: float) -> None:
        """Returns when the task is done, or when that much work was possible."""
        until = self.now() + seconds
        await asyncio.wait({task}, timeout=max(seconds, 0.0))
        while not task.done() and (left := until - self.now()) > 0:
            await asyncio.wait({task}, timeout=max(left, LEAST_WAIT_SECONDS))


class RetryPolicy:
    """The deadline of waits and retries; infinite by default, which is for code outside of a stage.

    plan = await retry_policy.retry(read_plan, waits_for="synchronizer", purpose="read the plan")
    """

    def __init__(self, waits: WaitRegistry, seconds: float = math.inf) -> None:
        self.waits = waits
        self.seconds = seconds

    @property
    def deadline_seconds(self) -> float:
        """The deadline as waits show it: 0 if there is none."""
        return self.seconds if math.isfinite(self.seconds) else 0.0

    def deadline_error(self, waits_for: str, what: str) -> RolloutStageFailed:
        """Returns the error that ends a wait."""
        return RolloutStageFailed(f"waited {self.seconds:g} s for the {waits_for} {what}")

    def new_retry(self, *, waits_for: str, purpose: str) -> Retry:
        """Returns the retries of one operation, which report a wait of their own."""
        prefix = f"to {purpose}: "
        return Retry(
            seconds=self.seconds,
            timeout_error=lambda reason: self.deadline_error(waits_for, prefix + reason),
            log=lambda reason: logger.warning(
                "will retry", extra={"purpose": purpose, "reason": reason}
            ),
            prefix=prefix,
            wait=RetryWait(
                reporter=self.waits, name=f"{waits_for}: {purpose}", waits_for=waits_for
            ),
        )

    async def retry(
        self, call: Callable[[], Awaitable[ValueT]], *, waits_for: str, purpose: str
    ) -> ValueT:
        """Returns the result of `call`, retrying for as long as it raises Unavailable.

        Raises: RolloutStageFailed when that takes too long.
        """
        return await self.new_retry(waits_for=waits_for, purpose=purpose).call_async(call)


class WatchFeed(Generic[ValueT]):
    """Keeps the last state of a watch stream and wakes the tasks that wait for a condition on it.

    feed = WatchFeed(
        open_stream, waits_for="synchronizer", purpose="follow it", retry_policy=retry_policy
    )
    tasks.create_task(feed.follow_stream())
    published = await feed.wait_for(lambda now: now.experiment.is_running)
    """

    def __init__(
        self,
        open_stream: Callable[[], AsyncIterator[ValueT]],
        *,
        waits_for: str,
        purpose: str,
        retry_policy: RetryPolicy,
    ) -> None:
        self._open_stream = open_stream
        self._waits_for = waits_for
        self._purpose = purpose
        self._retry_policy = retry_policy
        self._retry = retry_policy.new_retry(waits_for=waits_for, purpose=purpose)
        self._changed = asyncio.Condition()
        self._listeners: list[Callable[[], None]] = []
        self.current: ValueT | None = None
        self.is_open = False

    def on_change(self, listener: Callable[[], None]) -> None:
        """Registers `listener` to be called after each change."""
        self._listeners.append(listener)

    async def follow_stream(self) -> None:
        """Follows the stream until cancelled.

        Raises: RolloutStageFailed when it cannot be opened for too long.
        """
        try:
            while True:
                await self._follow()
                await asyncio.sleep(min(PAUSE_SECONDS, self._retry.next_pause()))
        finally:
            self._retry.end()

    async def wait_for(self, condition: Callable[[ValueT], bool]) -> ValueT:
        """Returns the state as soon as it meets the condition."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.current is not None and condition(self.current)
            )
            assert self.current is not None
            return self.current

    async def _follow(self) -> None:
        stream = self._open_stream()
        try:
            first = await self._first(stream)
            if first is None:
                return
            await self._receive(first)
            async for state in stream:
                await self._receive(state)
        except Unavailable as error:
            self.is_open = False
            self._retry.record_failure(error)

    async def _first(self, stream: AsyncIterator[ValueT]) -> ValueT | None:
        """Returns the current state, which a stream sends as soon as it is opened.

        Raises: Unavailable when it does not.
        """
        waiting = self._retry_policy.waits.waiting_if_longer(
            SHOWN_AFTER_SECONDS,
            for_=self._waits_for,
            reason=f"to {self._purpose}: {NO_RESPONSE}",
            deadline_seconds=FIRST_RESPONSE_SECONDS,
        )
        try:
            with waiting:
                async with asyncio.timeout(FIRST_RESPONSE_SECONDS):
                    return await anext(stream, None)
        except TimeoutError as error:
            raise Unavailable(NO_RESPONSE) from error

    async def _receive(self, state: ValueT) -> None:
        self._retry.end()
        await self._set(state)

    async def _set(self, state: ValueT) -> None:
        async with self._changed:
            self.current = state
            self.is_open = True
            self._changed.notify_all()
        for listener in self._listeners:
            listener()


@contextmanager
def translate_rpc_errors(service: str) -> Iterator[None]:
    """Converts the error of a failed call to ours, prefixed with the service's name."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        ours = error_of(error)
        raise type(ours)(f"{service}: {ours}") from error


async def iterate_until_deadline(
    service: str, stream: AsyncIterable[ValueT]
) -> AsyncIterator[ValueT]:
    """Yields a watch stream's messages until its deadline, after which it must be reopened."""
    with translate_rpc_errors(service):
        try:
            async for message in stream:
                yield message
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise


class IdleTimeout:
    """Tracks how long the buffer has given the same reason for having no work."""

    def __init__(self, retry_policy: RetryPolicy) -> None:
        self._retry_policy = retry_policy
        self._reason: str | None = None
        self._since = 0.0

    @property
    def seconds_left(self) -> float:
        """Seconds for which the buffer's last reason may still stay the same."""
        if self._reason is None:
            return self._retry_policy.seconds
        return max(self._retry_policy.seconds - (time.monotonic() - self._since), 0.0)

    def show_request(self) -> AbstractContextManager[None]:
        """Shows that work is being requested, until the buffer has given a reason."""
        if self._reason is not None:
            return nullcontext()
        return self._retry_policy.waits.waiting_if_longer(
            SHOWN_AFTER_SECONDS,
            for_="buffer",
            reason="to lease work",
            deadline_seconds=self._retry_policy.deadline_seconds,
        )

    def record_reason(self, reason: str, *, is_idle: bool) -> None:
        """Records the buffer's newest reason; there is no deadline while this process has runs.

        Raises: RolloutStageFailed when nothing has changed for too long.
        """
        now = time.monotonic()
        if reason != self._reason or not is_idle:
            self.reset()
            self._reason, self._since = reason, now
        if now - self._since >= self._retry_policy.seconds:
            raise self._retry_policy.deadline_error("buffer", f"to have work: {reason}")
        self._retry_policy.waits.set(
            WORK_WAIT,
            waits_for="buffer",
            reason=reason,
            deadline_seconds=self._retry_policy.deadline_seconds if is_idle else 0.0,
        )

    def reset(self) -> None:
        """Clears the wait: there is work, or none is requested any more."""
        self._reason = None
        self._retry_policy.waits.clear(WORK_WAIT)
