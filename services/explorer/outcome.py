"""Outcomes of attempts at runs, and their conversion to protobuf."""

from dataclasses import dataclass, field

from services.explorer.assignments import Assignment
from trinity.api.v1 import experience_pb2
from trinity.codec import SampleRef, set_experience
from trinity.types import Experience, StageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at one run of an assignment."""

    key: StageKey
    assignment: Assignment
    run: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of an attempt: its experiences, or the reason why there are none."""

    attempt: Attempt
    experiences: list[Experience] = field(default_factory=list)
    failure: str = ""
    duration_seconds: float = 0.0
    traceparent: str = ""

    @property
    def is_complete(self) -> bool:
        """True if the workflow ran to its end."""
        return not self.failure


def outcome_to_proto(outcome: Outcome) -> experience_pb2.RunResult:
    """Converts an outcome; raises ValueError when an experience is inconsistent."""
    attempt = outcome.attempt
    key, assignment = attempt.key, attempt.assignment
    ref = SampleRef(
        tenant=key.tenant,
        experiment_id=key.experiment_id,
        assignment_id=assignment.id,
        taskset=assignment.taskset,
        task_index=assignment.task_index,
    )
    results = experience_pb2.RunResult
    message = results(
        tenant=key.tenant,
        experiment_id=key.experiment_id,
        stage=key.stage,
        assignment_id=assignment.id,
        run=attempt.run,
        attempt=attempt.number,
        state=results.STATE_COMPLETE if outcome.is_complete else results.STATE_FAILED,
        reason=outcome.failure.encode(errors="replace").decode(),
        duration_seconds=outcome.duration_seconds,
        traceparent=outcome.traceparent,
    )
    for experience in outcome.experiences:
        set_experience(message.experiences.add(), experience, ref)
    return message
