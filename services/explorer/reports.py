"""What the buffer says about results."""

from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    """What the buffer did with a result; after any of them it is never sent again."""

    COMMITTED = "committed"
    SUPERSEDED = "superseded"
    LATE = "late"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Report:
    """What the buffer says about a result."""

    fate: Fate
    reason: str = ""
    """Why it was rejected."""
