"""Results of calls about tasksets."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from trinity.types import JsonObject


class TasksetState(StrEnum):
    """The state of a taskset's upload."""

    INCOMPLETE = "incomplete"
    """Its upload is in progress, or has broken off."""
    COMPLETE = "complete"
    OPEN = "open"
    """A queue that accepts more tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRow:
    """A row that was not stored."""

    index: int
    """Its index among the given rows, from 0."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitResult:
    """The outcome of one upload."""

    taskset_id: str
    request_id: str
    num_stored: int
    num_refused: int
    refused: tuple[RejectedRow, ...]
    """The first 1,000 refused rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInfo:
    """The outcome of a task pipeline."""

    num_read: int
    left_out: Mapping[str, int]
    """Counts by reason, largest first."""
    ordered_by: Mapping[str, float]
    """Weights of the scores that ordered the remaining rows; empty if their order is original."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksetInfo:
    """A taskset, with the requested rows."""

    taskset_id: str
    name: str
    """Empty for one that was read from files or a table."""
    source: str
    """The origin that it was read from; empty for one that was submitted."""
    state: TasksetState
    is_queue: bool
    num_rows: int
    num_refused: int
    num_stages: int
    """The number of stages that use it."""
    created_at: datetime
    rows: tuple[JsonObject, ...] = ()
    source_rows: tuple[int, ...] = ()
    """Each row's index in its source, if a task pipeline was in between."""
    pipeline: PipelineInfo | None = None
