"""Shows that the buffer has no work, and fails the stage if its reason stays the same too long."""

import time
from contextlib import AbstractContextManager, nullcontext

from services.explorer.patience import Patience

WAIT = "work"
SHOWN_AFTER_SECONDS = 1.0


class Idleness:
    """Tracks how long the buffer has given the same reason for having no work."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._reason: str | None = None
        self._since = 0.0

    @property
    def seconds_left(self) -> float:
        """Seconds for which the buffer's last reason may still stay the same."""
        if self._reason is None:
            return self._patience.seconds
        return max(self._patience.seconds - (time.monotonic() - self._since), 0.0)

    def asking(self) -> AbstractContextManager[None]:
        """Shows that work is being requested, until the buffer has given a reason."""
        if self._reason is not None:
            return nullcontext()
        return self._patience.waits.if_longer(
            SHOWN_AFTER_SECONDS,
            for_="buffer",
            reason="to lease work",
            deadline_seconds=self._patience.deadline_seconds,
        )

    def note(self, reason: str, *, is_idle: bool) -> None:
        """Records the buffer's newest reason; there is no deadline while this process has runs.

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
        """Clears the wait: there is work, or none is requested any more."""
        self._reason = None
        self._patience.waits.clear(WAIT)
