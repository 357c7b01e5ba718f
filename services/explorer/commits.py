"""Follows the buffer's reports on results."""

import asyncio

from services.explorer.buffer_client import BufferClient
from services.explorer.unconfirmed import Unconfirmed
from trinity.errors import RpcError

PAUSE_SECONDS = 0.2


class CommitWatch:
    """Settles results as the buffer reports on them; reopens the stream when it ends."""

    def __init__(self, *, producer: str, buffer: BufferClient, unconfirmed: Unconfirmed) -> None:
        self._producer = producer
        self._buffer = buffer
        self._unconfirmed = unconfirmed

    async def run(self) -> None:
        """Runs until cancelled; callers that wait for reports set their own deadlines."""
        while True:
            try:
                await self._follow()
            except RpcError as error:
                self._unconfirmed.hindered("buffer", f"its reports cannot be followed: {error}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self) -> None:
        sequences = self._unconfirmed.watched
        async for reports in self._buffer.watch_commits(self._producer, sequences):
            self._unconfirmed.unhindered("buffer")
            for sequence, report in reports:
                self._unconfirmed.settle(sequence, report)
