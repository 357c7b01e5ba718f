"""Long polls: look, wait for a change, look again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

from trinity.errors import Unavailable
from trinity.notifications import Listener, Subscription

T = TypeVar("T")
AnswerT = TypeVar("AnswerT", covariant=True)
KEEP_LOOKING_SECONDS = 30.0
"""A stream looks again after this long even without a notification."""


class Look(Protocol[AnswerT]):
    """The result of one look at what a caller waits for."""

    @property
    def answer(self) -> AnswerT:
        """The current answer."""

    @property
    def is_final(self) -> bool:
        """True if waiting cannot give a better answer."""

    @property
    def look_again_seconds(self) -> float | None:
        """Delay after which to look again even without a notification."""


class Poller:
    """Waits for notifications of the database; `close` ends all waits, so that shutdown is fast."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Ends every wait in progress with its current answer."""
        self._closing.set()

    async def poll(
        self, topic: str, wait_seconds: float, look: Callable[[], Awaitable[Look[T]]]
    ) -> T:
        """Looks until an answer is final or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        with self._listener.subscribe(topic) as changes:
            while True:
                seen = await look()
                seconds_left = deadline - loop.time()
                if seen.is_final or seconds_left <= 0 or self._closing.is_set():
                    return seen.answer
                if seen.look_again_seconds is not None:
                    seconds_left = min(seconds_left, seen.look_again_seconds + 0.01)
                await self._wait(changes, seconds_left)

    async def changes(self, topic: str) -> AsyncIterator[None]:
        """Yields once at the start, then whenever something may have changed, until closed."""
        with self._listener.subscribe(topic) as changes:
            while not self._closing.is_set():
                yield
                await self._wait(changes, KEEP_LOOKING_SECONDS)
        raise Unavailable("the buffer is stopping")

    async def _wait(self, changes: Subscription, seconds: float) -> None:
        closing = asyncio.ensure_future(self._closing.wait())
        changed = asyncio.ensure_future(changes.wait(seconds))
        try:
            await asyncio.wait({closing, changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in (closing, changed):
                waiter.cancel()
            await asyncio.gather(closing, changed, return_exceptions=True)
