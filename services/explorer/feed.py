"""The newest state of a stream that is opened again whenever it ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from services.explorer.patience import Patience
from trinity.errors import Unavailable

T = TypeVar("T")
PAUSE_SECONDS = 0.5


class Feed(Generic[T]):
    """Keeps what a watch stream said last, and wakes those who wait for something in it.

    feed = Feed(open_stream, waits_for="synchronizer", purpose="follow it", patience=patience)
    tasks.create_task(feed.run())
    published = await feed.wait_for(lambda now: now.experiment.is_running)
    """

    def __init__(
        self,
        open_stream: Callable[[], AsyncIterator[T]],
        *,
        waits_for: str,
        purpose: str,
        patience: Patience,
    ) -> None:
        self._open_stream = open_stream
        self._outage = patience.outage(waits_for=waits_for, purpose=purpose)
        self._changed = asyncio.Condition()
        self._listeners: list[Callable[[], None]] = []
        self.current: T | None = None
        self.is_open = False

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Follow the stream; until cancelled.

        Raises: StageFailed when it does not open for too long.
        """
        try:
            while True:
                await self._follow()
                await asyncio.sleep(min(PAUSE_SECONDS, self._outage.next_pause()))
        finally:
            self._outage.over()

    async def wait_for(self, condition: Callable[[T], bool]) -> T:
        """The state, as soon as it meets the condition."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.current is not None and condition(self.current)
            )
            assert self.current is not None
            return self.current

    async def _follow(self) -> None:
        try:
            async for state in self._open_stream():
                self._outage.over()
                await self._set(state)
        except Unavailable as error:
            self.is_open = False
            self._outage.note(str(error))

    async def _set(self, state: T) -> None:
        async with self._changed:
            self.current = state
            self.is_open = True
            self._changed.notify_all()
        for listener in self._listeners:
            listener()
