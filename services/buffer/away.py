"""Stages whose operators ask a service that does not answer: they pause, and say so."""

import logging
import time
from collections.abc import Collection

from trinity.types import StageKey
from trinity.waits import Waits

logger = logging.getLogger(__name__)

WAIT = "operator's service"
PAUSE_SECONDS = 2.0


class AwayServices:
    """Until when each of these stages pauses; their groups have lost no attempt."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._until: dict[StageKey, float] = {}

    def is_away(self, key: StageKey) -> bool:
        """Whether it is too early to ask again."""
        return time.monotonic() < self._until.get(key, 0.0)

    def note(self, key: StageKey, why: str) -> None:
        """It did not answer."""
        logger.warning("a stage's operator waits", extra={"stage": key.stage, "why": why})
        self._until[key] = time.monotonic() + PAUSE_SECONDS
        reason = f"to shape groups of stage {key.stage}: {why}"
        self._waits.set(WAIT, waits_for="experience operator", reason=reason)

    def forget(self, key: StageKey) -> None:
        """It has answered."""
        self.keep([one for one in self._until if one != key])

    def keep(self, keys: Collection[StageKey]) -> None:
        """Stages without work wait for nothing any more."""
        over = [one for one in self._until if one not in keys]
        for key in over:
            self._until.pop(key)
        if over and not self._until:
            self._waits.clear(WAIT)
