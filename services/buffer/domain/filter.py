"""Filter and page cursor for listing samples."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.buffer.domain.states import AssignmentKind, ExperienceState


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions that must all hold; None and empty values match everything."""

    kind: AssignmentKind = AssignmentKind.TRAIN
    states: Sequence[ExperienceState] = ()
    """Empty for all but DERIVED, because a revision replaces each of those."""
    reward_min: float | None = None
    reward_max: float | None = None
    version_min: int | None = None
    version_max: int | None = None
    taskset: str = ""
    task_index: int | None = None
    explore_step: int | None = None
    train_step: int | None = None
    text: str = ""
    experience_ids: Sequence[str] = ()
    finish_reason: str = ""

    @property
    def is_empty(self) -> bool:
        """True if everything of its kind passes."""
        return self == Filter(kind=self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Position of a sample in the listing order."""

    explore_step: int
    position: int
    run: int
    step: int
    suffix: str
    revision: int
    experience_id: str
