"""Results of runs, and the decision on each: the first complete attempt at a run wins."""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from services.buffer.domain.stage import (
    OPEN_ASSIGNMENT,
    AssignmentKind,
    AssignmentState,
    AttemptState,
    CommitStatus,
    RunState,
)
from trinity.types import StageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSample:
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
    turn_sha256: bytes
    """Digests of its turns, 32 bytes each (`trinity.runtime.origin`)."""
    body: bytes
    media: frozenset[bytes] = frozenset()
    """Hashes of its images."""


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
    experiences: tuple[ReceivedSample, ...]
    traceparent: str = ""

    @property
    def place(self) -> tuple[str, int, int]:
        """The key of the attempt."""
        return self.assignment_id, self.run, self.attempt

    @property
    def media(self) -> set[bytes]:
        """Hashes of its images."""
        return {sha256 for sample in self.experiences for sha256 in sample.media}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAttempt:
    """An attempt that is already in the database."""

    place: tuple[str, int, int]
    producer: str
    sequence: int
    content_hash: bytes
    state: str


@dataclass(slots=True, kw_only=True)
class RunProgress:
    """The current state of a run while results of it are decided on."""

    state: RunState
    num_failed: int
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class AssignmentView:
    """An assignment with the state of its runs."""

    assignment_id: str
    kind: AssignmentKind
    state: AssignmentState
    taskset: str
    task_index: int
    explore_step: int
    position: int
    required_version: int
    runs: dict[int, RunProgress]
    lease_token: str | None = None

    @property
    def num_open_runs(self) -> int:
        """Number of runs that have not ended."""
        return sum(run.state is RunState.OPEN for run in self.runs.values())


COMMIT_STATUSES = {
    AttemptState.WON: CommitStatus.COMMITTED,
    AttemptState.FAILED: CommitStatus.COMMITTED,
    AttemptState.SUPERSEDED: CommitStatus.SUPERSEDED,
    AttemptState.LATE: CommitStatus.LATE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDecision:
    """The decision on a result."""

    result: Result
    status: CommitStatus
    state: AttemptState | None = None
    """State of the attempt to store; None to store no attempt."""
    reason: str = ""
    """The reason for a rejection."""


@dataclass(slots=True, kw_only=True)
class ResultDeduplicator:
    """Decides on the results of one stage in their order; the first complete attempt wins.

    The same result may arrive any number of times and gets the same decision each time. Different
    content under the same attempt is rejected. The caller makes sure that no other transaction
    decides on results of these assignments meanwhile.
    """

    assignments: dict[str, AssignmentView]
    known: Iterable[StoredAttempt]
    stage_is_open: bool
    max_attempts: int
    newest_version: int
    """No weights are newer: so many steps have their batch."""
    media: Set[bytes] = frozenset()
    """Hashes of the images of these results that are stored."""
    stored: list[StoredAttempt] = field(init=False, default_factory=list)
    """Attempts to store."""
    _by_place: dict[tuple[str, int, int], StoredAttempt] = field(init=False)
    _by_sequence: dict[tuple[str, int], StoredAttempt] = field(init=False)

    def __post_init__(self) -> None:
        self._by_place = {attempt.place: attempt for attempt in self.known}
        self._by_sequence = {(known.producer, known.sequence): known for known in self.known}

    def decide(self, result: Result) -> CommitDecision:
        """Decides on a result; the decision counts for the results that follow."""
        before = self._by_place.get(result.place) or self._by_sequence.get(
            (result.producer, result.sequence)
        )
        if before is not None:
            return _compare(result, before)
        if contradiction := self._contradiction(result):
            return CommitDecision(result=result, status=CommitStatus.REJECTED, reason=contradiction)
        state = self._attempt_state(result)
        self._remember(result, state)
        return CommitDecision(result=result, status=COMMIT_STATUSES[state], state=state)

    def _remember(self, result: Result, state: AttemptState) -> None:
        known = StoredAttempt(
            place=result.place,
            producer=result.producer,
            sequence=result.sequence,
            content_hash=result.content_hash,
            state=state,
        )
        self.stored.append(known)
        self._by_place[known.place] = known
        self._by_sequence[known.producer, known.sequence] = known

    def _contradiction(self, result: Result) -> str:
        view = self.assignments.get(result.assignment_id)
        if view is None:
            return f"there is no assignment {result.assignment_id}"
        if result.run not in view.runs:
            return f"run {result.run} is outside 0..{len(view.runs) - 1}"
        if not result.experiences:
            return ""
        if (result.explore_step, result.position) != (view.explore_step, view.position):
            return "the EID is not the assignment's"
        if (result.taskset, result.task_index) != (view.taskset, view.task_index):
            return "the task is not the assignment's"
        if lost := result.media - self.media:
            return lost_media(lost)
        made_with = max(sample.version_max or 0 for sample in result.experiences)
        if made_with > self.newest_version:
            return (
                f"it was made with version {made_with} of the weights, and batches are recorded up "
                f"to step {self.newest_version}: the database is older, restored from a backup"
            )
        return ""

    def _attempt_state(self, result: Result) -> AttemptState:
        view = self.assignments[result.assignment_id]
        run = view.runs[result.run]
        if run.state is RunState.WON:
            return AttemptState.SUPERSEDED
        closed = view.state not in OPEN_ASSIGNMENT
        if run.state is RunState.GIVEN_UP or closed or not self.stage_is_open:
            return AttemptState.LATE
        if result.is_complete:
            run.state = RunState.WON
            return AttemptState.WON
        _count_failure(run, result.reason, self.max_attempts)
        return AttemptState.FAILED


def lost_media(lost: Set[bytes]) -> str:
    """Returns the reason to refuse what refers to images that its tenant does not have."""
    return f"its image {min(lost).hex()} is not stored for its tenant"


def _compare(result: Result, before: StoredAttempt) -> CommitDecision:
    if before.place == result.place and before.content_hash == result.content_hash:
        return CommitDecision(result=result, status=COMMIT_STATUSES[AttemptState(before.state)])
    reason = "another result was stored under the same attempt or sequence"
    return CommitDecision(result=result, status=CommitStatus.REJECTED, reason=reason)


def _count_failure(run: RunProgress, reason: str, max_attempts: int) -> None:
    run.num_failed += 1
    run.reason = reason
    if run.num_failed >= max_attempts:
        run.state = RunState.GIVEN_UP
