"""Waits of stages whose results need another version of the buffer to read their plan."""

import logging
import time
from dataclasses import dataclass, field

from services.buffer.store.stages import UnreadablePlan
from trinity.limited_log import LimitedLog
from trinity.types import StageKey
from trinity.waits import Waits

limited_log = LimitedLog(logging.getLogger(__name__))

AGAIN_SECONDS = 3.0
"""Redelivery delay, after which another replica may take the results."""
OVER_SECONDS = 4 * AGAIN_SECONDS
"""After this time without a redelivery, another replica has stored them."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Shows a wait for each such stage as long as its results are redelivered."""

    waits: Waits
    _seen: dict[StageKey, float] = field(default_factory=dict)

    def note(self, error: UnreadablePlan) -> None:
        """Records that a result of this stage was delivered."""
        key = error.key
        about = {"tenant": key.tenant, "experiment": key.experiment_id, "stage": key.stage}
        kind = "results of a stage wait: its plan cannot be read"
        limited_log.warning(kind, about, why=str(error))
        self._seen[key] = time.monotonic()
        self.waits.set(
            _name(key),
            waits_for="another version of the buffer",
            reason=f"to store results: {error}",
        )

    def look(self) -> None:
        """Ends the waits of stages whose results are no longer delivered."""
        now = time.monotonic()
        for key in [key for key, seen in self._seen.items() if now - seen > OVER_SECONDS]:
            del self._seen[key]
            self.waits.clear(_name(key))


def _name(key: StageKey) -> str:
    return f"results/{key.tenant}/{key.experiment_id}/{key.stage}"
