"""Stages whose results wait in the stream for a version of the buffer that can read their plans."""

import logging
import time
from dataclasses import dataclass, field

from services.buffer.store.stages import UnreadablePlan
from trinity.limited_log import LimitedLog
from trinity.types import StageKey
from trinity.waits import Waits

limited_log = LimitedLog(logging.getLogger(__name__))

AGAIN_SECONDS = 3.0
"""Until another replica may take them, as this one cannot store them."""
OVER_SECONDS = 4 * AGAIN_SECONDS
"""Without one of them: somebody else has stored them."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What is shown of them: a wait for each stage as long as its results come again."""

    waits: Waits
    _seen: dict[StageKey, float] = field(default_factory=dict)

    def note(self, error: UnreadablePlan) -> None:
        """A result of this stage came."""
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
        """End the waits of stages whose results come no more."""
        now = time.monotonic()
        for key in [one for one, seen in self._seen.items() if now - seen > OVER_SECONDS]:
            del self._seen[key]
            self.waits.clear(_name(key))


def _name(key: StageKey) -> str:
    return f"results/{key.tenant}/{key.experiment_id}/{key.stage}"
