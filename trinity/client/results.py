"""What calls about tasksets answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from trinity.types import JsonObject


class TasksetState(StrEnum):
    """How far a taskset is."""

    INCOMPLETE = "incomplete"
    """Somebody is sending it, or has broken off."""
    COMPLETE = "complete"
    OPEN = "open"
    """A queue that takes more tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A row that was not stored."""

    index: int
    """Its place among the rows that were given, from 0."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What became of the rows of one request."""

    taskset_id: str
    request_id: str
    num_stored: int
    num_refused: int
    refused: tuple[Refusal, ...]
    """The first 1,000 of those that were refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInfo:
    """What a task pipeline made of the rows of its source."""

    num_read: int
    left_out: Mapping[str, int]
    """By reason, most first."""
    ordered_by: Mapping[str, float]
    """Weights of the scores that ordered what is left; empty where it is as it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksetInfo:
    """A taskset, with those of its rows that were asked for."""

    taskset_id: str
    name: str
    """Empty for one that was read from files or a table."""
    source: str
    """Where it was read from; empty for one that was submitted."""
    state: TasksetState
    is_queue: bool
    num_rows: int
    num_refused: int
    num_stages: int
    """Stages that take from it."""
    created_at: datetime
    rows: tuple[JsonObject, ...] = ()
    source_rows: tuple[int, ...] = ()
    """Which row of its source each of them is, where a task pipeline was in between."""
    pipeline: PipelineInfo | None = None
