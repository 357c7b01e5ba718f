"""Long polls: look, wait until something changes, look again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

from trinity.errors import Unavailable
from trinity.notifications import Listener, Subscription

T = TypeVar("T")
AnswerT = TypeVar("AnswerT", covariant=True)
KEEP_LOOKING_SECONDS = 30.0
"""A stream looks again after this long even if nobody says that something changed."""


class Look(Protocol[AnswerT]):
    """One look at what a caller waits for."""

    @property
    def answer(self) -> AnswerT:
        """What there is."""

    @property
    def is_final(self) -> bool:
        """Whether there is no use in waiting for a better answer."""

    @property
    def look_again_seconds(self) -> float | None:
        """When to look again although nothing was heard."""


class Poller:
    """Waits on the database's notifications; `close` ends every wait, so that a stop is quick."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Let every wait in progress end with what it has."""
        self._closing.set()

    async def poll(
        self, topic: str, wait_seconds: float, look: Callable[[], Awaitable[Look[T]]]
    ) -> T:
        """Look until an answer is final or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        with self._listener.subscribe(topic) as changes:
            while True:
                seen = await look()
                left = deadline - loop.time()
                if seen.is_final or left <= 0 or self._closing.is_set():
                    return seen.answer
                if seen.look_again_seconds is not None:
                    left = min(left, seen.look_again_seconds + 0.01)
                await self._wait(changes, left)

    async def changes(self, topic: str) -> AsyncIterator[None]:
        """Once at the beginning, then whenever something may have changed, until closed."""
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
