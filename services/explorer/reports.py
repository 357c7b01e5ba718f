"""The buffer's reports on results."""

from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    """The buffer's final decision on a result, after which it is never sent again."""

    COMMITTED = "committed"
    SUPERSEDED = "superseded"
    LATE = "late"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Report:
    """The buffer's report on a result."""

    fate: Fate
    reason: str = ""
    """Reason of a rejection."""
