"""The result of a diagnosis."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """The state of a run."""

    WORKING = "working"
    HELD = "held"
    """Something has to end or to be fixed before it continues."""
    BROKEN = "broken"
    """The same, because a part does not work."""
    OVER = "over"
    """It has failed or was cancelled."""
    IDLE = "idle"
    """There is nothing to do."""


HEALTHY = (State.WORKING, State.IDLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One cause, named in a sentence or two."""

    state: State
    cause: str
    """Distinguishes causes, whatever durations their sentences mention."""
    text: str
    owner: str = ""
    """The waiting part, if it waits for slow work of its own."""
    notes: tuple[str, ...] = ()
    """Facts worth knowing that do not hold up the run."""

    @property
    def is_healthy(self) -> bool:
        """True if no action is needed."""
        return self.state in HEALTHY
