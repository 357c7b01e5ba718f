"""What a diagnosis comes to."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a run gets on."""

    WORKING = "working"
    HELD = "held"
    """Something has to end or to be mended before it goes on."""
    BROKEN = "broken"
    """The same, and it is a part that does not work."""
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
    """Tells causes from one another, whatever their sentences say of the time."""
    text: str
    owner: str = ""
    """Who waits, where work takes its time that belongs to itself."""
    notes: tuple[str, ...] = ()
    """What does not hold the run and should be known."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing has to be done."""
        return self.state in HEALTHY
