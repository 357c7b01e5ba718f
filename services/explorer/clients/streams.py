"""Watch streams of other services, reopened whenever they end, and the errors of calls."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import grpc

from services.explorer.retry import RetryPolicy
from trinity.errors import Unavailable
from trinity.rpc.errors import error_of

T = TypeVar("T")
PAUSE_SECONDS = 0.5
SHOWN_AFTER_SECONDS = 1.0
FIRST_RESPONSE_SECONDS = 10.0
NO_RESPONSE = "it says nothing"


class WatchFeed(Generic[T]):
    """Keeps the last state of a watch stream and wakes the tasks that wait for a condition on it.

    feed = WatchFeed(
        open_stream, waits_for="synchronizer", purpose="follow it", retry_policy=retry_policy
    )
    tasks.create_task(feed.follow_stream())
    published = await feed.wait_for(lambda now: now.experiment.is_running)
    """

    def __init__(
        self,
        open_stream: Callable[[], AsyncIterator[T]],
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
        self.current: T | None = None
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

    async def wait_for(self, condition: Callable[[T], bool]) -> T:
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

    async def _first(self, stream: AsyncIterator[T]) -> T | None:
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

    async def _receive(self, state: T) -> None:
        self._retry.end()
        await self._set(state)

    async def _set(self, state: T) -> None:
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


async def iterate_until_deadline(service: str, stream: AsyncIterable[T]) -> AsyncIterator[T]:
    """Yields a watch stream's messages until its deadline, after which it must be reopened."""
    with translate_rpc_errors(service):
        try:
            async for message in stream:
                yield message
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise
