"""Watch streams: their last state, and reopening them."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Generic, TypeVar

import grpc

from trinity.errors import Unavailable
from trinity.runtime.members import WaitKind
from trinity.runtime.retry import RetryPolicy, deadline
from trinity.runtime.rpc.errors import translate_rpc_errors

ValueT = TypeVar("ValueT")
PAUSE_SECONDS = 0.5
SHOWN_AFTER_SECONDS = 1.0
FIRST_RESPONSE_SECONDS = 10.0
NO_RESPONSE = "it says nothing"


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
            state = await self._first(stream)
            while state is not None:
                await self._receive(state)
                state = await anext(stream, None)
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
            kind=WaitKind.NO_ANSWER,
        )
        async with deadline(FIRST_RESPONSE_SECONDS, Unavailable(NO_RESPONSE)):
            with waiting:
                return await anext(stream, None)

    async def _receive(self, state: ValueT) -> None:
        self._retry.end()
        async with self._changed:
            self.current, self.is_open = state, True
            self._changed.notify_all()
        for listener in self._listeners:
            listener()


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
