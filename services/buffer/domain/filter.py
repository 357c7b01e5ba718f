"""Which samples somebody wants to see, and where in their order a page ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.buffer.domain.states import AssignmentKind, ExperienceState


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Conditions that all must hold; None and empty ones always do."""

    kind: AssignmentKind = AssignmentKind.TRAIN
    states: Sequence[ExperienceState] = ()
    """Empty for all but DERIVED: a revision has taken the place of those."""
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
        """Whether everything of its kind passes."""
        return self == Filter(kind=self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A sample's place in the order of samples."""

    explore_step: int
    position: int
    run: int
    step: int
    suffix: str
    revision: int
    experience_id: str
