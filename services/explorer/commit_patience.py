"""Shows results that wait long for their commit, and fails the stage after a deadline."""

import asyncio

from services.explorer.patience import Patience
from services.explorer.unconfirmed import Unconfirmed

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
