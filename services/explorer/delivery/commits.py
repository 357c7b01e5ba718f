"""Follows the buffer's reports on results."""

import asyncio

from services.explorer.clients.buffer import BufferClient
from services.explorer.delivery.outbox import Unconfirmed
from services.explorer.retry import Patience
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


LOOK_SECONDS = 0.5
SHOWN_AFTER_SECONDS = 1.0
"""Most results are committed within a tenth of this."""
WAIT = "commits"


class CommitPatience:
    """Watches the oldest result that the buffer has not reported on."""

    def __init__(self, *, unconfirmed: Unconfirmed, patience: Patience) -> None:
        self._unconfirmed = unconfirmed
        self._patience = patience

    async def run(self) -> None:
        """Runs until cancelled.

        Raises: StageFailed when a result waits for too long.
        """
        try:
            while True:
                self._look()
                left = self._patience.seconds - self._unconfirmed.oldest_seconds
                await asyncio.sleep(min(max(left, 0.0), LOOK_SECONDS))
        finally:
            self._patience.waits.clear(WAIT)

    def _look(self) -> None:
        waited = self._unconfirmed.oldest_seconds
        waits_for, why = self._unconfirmed.hindrance
        if waited and waited >= self._patience.seconds:
            raise self._patience.lost(waits_for, f"to have results committed: {why}")
        if waited < SHOWN_AFTER_SECONDS:
            self._patience.waits.clear(WAIT)
            return
        self._patience.waits.set(
            WAIT,
            waits_for=waits_for,
            reason=f"{len(self._unconfirmed)} results to be committed: {why}",
            deadline_seconds=self._patience.deadline_seconds,
        )
