"""Follows the buffer's reports on results."""

import asyncio
import logging

from services.explorer.buffer_client import BufferClient
from services.explorer.status import Status
from services.explorer.unconfirmed import Fate, Unconfirmed
from trinity.errors import Unavailable

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.5
WAIT = "commit reports"


class CommitWatch:
    """Settles results as the buffer reports their fate; opens the stream again when it ends."""

    def __init__(
        self, *, producer: str, buffer: BufferClient, unconfirmed: Unconfirmed, status: Status
    ) -> None:
        self._producer = producer
        self._buffer = buffer
        self._unconfirmed = unconfirmed
        self._status = status

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._follow()
            except Unavailable as error:
                if len(self._unconfirmed):
                    self._status.wait_for(WAIT, "buffer", f"to report on results: {error}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self) -> None:
        sequences = self._unconfirmed.sequences
        async for reports in self._buffer.watch_commits(self._producer, sequences):
            self._status.stop_waiting(WAIT)
            for sequence, fate, reason in reports:
                if fate is Fate.REJECTED:
                    logger.error(
                        "the buffer refused a result",
                        extra={"sequence": sequence, "reason": reason},
                    )
                self._unconfirmed.settle(sequence, fate)
