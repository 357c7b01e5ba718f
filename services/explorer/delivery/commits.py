"""Follows the buffer's reports on results, and enforces the deadline for them."""

import asyncio

from services.explorer.clients.buffer import ExplorerBufferClient
from services.explorer.delivery.outbox import Outbox
from services.explorer.retry import RetryPolicy
from trinity.errors import RpcError

PAUSE_SECONDS = 0.2
CHECK_SECONDS = 0.5
SHOWN_AFTER_SECONDS = 1.0
"""Most results are committed within a tenth of this."""
WAIT = "commits"


class CommitReportWatcher:
    """Resolves results as the buffer reports on them; reopens the stream when it ends."""

    def __init__(self, *, producer: str, buffer: ExplorerBufferClient, outbox: Outbox) -> None:
        self._producer = producer
        self._buffer = buffer
        self._outbox = outbox

    async def follow_reports(self) -> None:
        """Runs until cancelled; callers that wait for reports set their own deadlines."""
        while True:
            try:
                await self._follow()
            except RpcError as error:
                self._outbox.mark_blocked("buffer", f"its reports cannot be followed: {error}")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self) -> None:
        sequences = self._outbox.watched_sequences
        async for reports in self._buffer.watch_commits(self._producer, sequences):
            self._outbox.clear_blocked("buffer")
            for sequence, report in reports:
                self._outbox.resolve(sequence, report)


class CommitDeadline:
    """Watches the oldest result that the buffer has not reported on."""

    def __init__(self, *, outbox: Outbox, retry_policy: RetryPolicy) -> None:
        self._outbox = outbox
        self._retry_policy = retry_policy

    async def enforce_deadline(self) -> None:
        """Runs until cancelled.

        Raises: RolloutStageFailed when a result waits for too long.
        """
        try:
            while True:
                self._check()
                left = self._retry_policy.seconds - self._outbox.oldest_seconds
                await asyncio.sleep(min(max(left, 0.0), CHECK_SECONDS))
        finally:
            self._retry_policy.waits.clear(WAIT)

    def _check(self) -> None:
        waited = self._outbox.oldest_seconds
        waits_for, why = self._outbox.blocked_by
        if waited and waited >= self._retry_policy.seconds:
            raise self._retry_policy.deadline_error(waits_for, f"to have results committed: {why}")
        if waited < SHOWN_AFTER_SECONDS:
            self._retry_policy.waits.clear(WAIT)
            return
        self._retry_policy.waits.set(
            WAIT,
            waits_for=waits_for,
            reason=f"{len(self._outbox)} results to be committed: {why}",
            deadline_seconds=self._retry_policy.deadline_seconds,
        )
