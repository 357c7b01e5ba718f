"""A buffer that has no work: shown, and not for ever while nothing about it changes."""

import time

from services.explorer.patience import Patience

WAIT = "work"


class Idleness:
    """Since when the buffer gives the same reason for having no work."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._reason: str | None = None
        self._since = 0.0

    def note(self, reason: str, *, is_idle: bool) -> None:
        """The buffer's newest reason; while this process has runs of its own, it may take its time.

        Raises: StageFailed when nothing has changed for too long.
        """
        now = time.monotonic()
        if reason != self._reason or not is_idle:
            self.over()
            self._reason, self._since = reason, now
        if now - self._since >= self._patience.seconds:
            raise self._patience.lost("buffer", f"to have work: {reason}")
        self._patience.waits.set(
            WAIT,
            waits_for="buffer",
            reason=reason,
            deadline_seconds=self._patience.deadline_seconds if is_idle else 0.0,
        )

    def over(self) -> None:
        """There is work, or nobody asks for it any more."""
        self._reason = None
        self._patience.waits.clear(WAIT)
