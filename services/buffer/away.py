"""Backoff for stages whose operators call a service that does not answer."""

import logging
import time
from collections.abc import Collection

from trinity.types import StageKey
from trinity.waits import Waits

logger = logging.getLogger(__name__)

WAIT = "operator's service"
PAUSE_SECONDS = 2.0


class AwayServices:
    """Tracks until when each such stage pauses; a pause costs its groups no attempt."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._until: dict[StageKey, float] = {}

    def is_away(self, key: StageKey) -> bool:
        """Returns whether it is too early to retry."""
        return time.monotonic() < self._until.get(key, 0.0)

    def note(self, key: StageKey, why: str) -> None:
        """Starts a pause, because the service did not answer."""
        logger.warning("a stage's operator waits", extra={"stage": key.stage, "why": why})
        self._until[key] = time.monotonic() + PAUSE_SECONDS
        reason = f"to shape groups of stage {key.stage}: {why}"
        self._waits.set(WAIT, waits_for="experience operator", reason=reason)

    def forget(self, key: StageKey) -> None:
        """Ends the pause, because the service has answered."""
        self.keep([other for other in self._until if other != key])

    def keep(self, keys: Collection[StageKey]) -> None:
        """Ends the pauses of all other stages, which have no work any more."""
        over = [key for key in self._until if key not in keys]
        for key in over:
            self._until.pop(key)
        if over and not self._until:
            self._waits.clear(WAIT)
