"""Results of runs as they arrive, and the known state of the runs they belong to."""

from dataclasses import dataclass

from services.buffer.domain.states import AssignmentKind, AssignmentState, RunState
from trinity.types import StageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperienceRecord:
    """One sample: the fields that the buffer uses, and the opaque wire bytes."""

    experience_id: str
    step: int
    suffix: str
    reward: float | None
    finish_reason: str
    version_min: int | None
    version_max: int | None
    num_tokens: int
    response_length: int
    metrics: dict[str, float]
    content_hash: bytes
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The complete result of one attempt at a run."""

    key: StageKey
    assignment_id: str
    taskset: str
    task_index: int
    explore_step: int
    position: int
    run: int
    attempt: int
    is_complete: bool
    reason: str
    metrics: dict[str, float]
    duration_seconds: float
    producer: str
    sequence: int
    content_hash: bytes
    experiences: tuple[ExperienceRecord, ...]
    traceparent: str = ""

    @property
    def place(self) -> tuple[str, int, int]:
        """The key of the attempt."""
        return self.assignment_id, self.run, self.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAttempt:
    """An attempt that is already in the database."""

    place: tuple[str, int, int]
    producer: str
    sequence: int
    content_hash: bytes
    state: str


@dataclass(slots=True, kw_only=True)
class OpenRun:
    """The current state of a run while a batch of results is judged."""

    state: RunState
    num_failed: int
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class AssignmentView:
    """An assignment whose runs are being judged."""

    assignment_id: str
    kind: AssignmentKind
    state: AssignmentState
    taskset: str
    task_index: int
    explore_step: int
    position: int
    required_version: int
    runs: dict[int, OpenRun]

    @property
    def num_open_runs(self) -> int:
        """Number of runs that have not ended."""
        return sum(run.state is RunState.OPEN for run in self.runs.values())
