"""A buffer that has no work: shown, and not for ever while nothing about it changes."""

import time
from contextlib import AbstractContextManager, nullcontext

from services.explorer.patience import Patience

WAIT = "work"
SHOWN_AFTER_SECONDS = 1.0


class Idleness:
    """Since when the buffer gives the same reason for having no work."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._reason: str | None = None
        self._since = 0.0

    @property
    def seconds_left(self) -> float:
        """How much longer the reason that the buffer gave last may stay the same."""
        if self._reason is None:
            return self._patience.seconds
        return max(self._patience.seconds - (time.monotonic() - self._since), 0.0)

    def asking(self) -> AbstractContextManager[None]:
        """Show that work is asked for, until the buffer has given a reason."""
        if self._reason is not None:
            return nullcontext()
        return self._patience.waits.if_longer(
            SHOWN_AFTER_SECONDS,
            for_="buffer",
            reason="to lease work",
            deadline_seconds=self._patience.deadline_seconds,
        )

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
