"""Values that the parts of the explorer share: weights, assignments, attempts and reports."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trinity.api.v1 import experience_pb2
from trinity.data.codec import SampleRef, set_experience
from trinity.runtime.members import WaitKind
from trinity.types import Experience, JsonObject, StageKey
from trinity.weights.offer import OfferAddress

if TYPE_CHECKING:
    from services.explorer.openai_api.session import Session
    from trinity.workflows.model import ModelWrapper
    from trinity.workflows.model_access import ApiAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsId:
    """Identity of weights: the train step that made them, and the trainer's incarnation."""

    version: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsRequirement:
    """The weights that a run may use: this version or, unless `exact_version`, any newer one.

    They may be of this incarnation or a later one: a later incarnation of the trainer makes the
    same version again from the same recorded batches.
    """

    version: int
    incarnation: int
    exact_version: bool
    takes_newer_if_lost: bool = False
    """True if any newer version will do once this one is damaged beyond replacement."""

    def matches(self, loaded: WeightsId | None) -> bool:
        """Returns true if a run may begin with `loaded`; older incarnations never suit."""
        if loaded is None or loaded.incarnation < self.incarnation:
            return False
        if self.exact_version:
            return loaded.version == self.version
        return loaded.version >= self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsVersion:
    """Weights on disk; those of a user-provided model have no manifest and no hash."""

    id: WeightsId
    path: Path
    manifest_sha256: bytes
    weights_sha256: bytes = b""
    """Root of weights that release 0.1 knows."""
    weights_blake3: bytes = b""
    offer: OfferAddress | None = field(default=None, compare=False)
    """The trainer's offer to transfer them from memory to memory, if it makes one."""
    copy: int = 0
    """Counts how often the trainer wrote them again under another path."""

    @property
    def content(self) -> bytes:
        """Identity of the content: its hash, else its path."""
        return self.weights_blake3 or self.weights_sha256 or str(self.path).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWeights:
    """Published weights that were damaged, with no copy to replace them."""

    id: WeightsId
    damage: str
    """What was wrong with their files."""


def model_weights(model_path: str) -> WeightsVersion:
    """Returns the user's model as weights, for stages in which no weights are published."""
    return WeightsVersion(
        id=WeightsId(version=0, incarnation=0),
        path=Path(model_path),
        manifest_sha256=b"",
        weights_sha256=b"",
    )


def oldest_match(
    required: WeightsRequirement, published: tuple[WeightsVersion, ...]
) -> WeightsVersion | None:
    """Returns the oldest weights that meet the requirement: those it names, if still there."""
    matches = [weights for weights in published if required.matches(weights.id)]
    return min(matches, key=lambda w: (w.id.version, w.id.incarnation), default=None)


class RolloutKind(StrEnum):
    """The purpose of a rollout."""

    TRAIN = "train"
    EVAL = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One draw of one task, leased to this explorer."""

    id: str
    kind: RolloutKind
    explore_step: int
    """The version to measure, if it is an evaluation."""
    position: int
    taskset: str
    task_index: int
    task_json: str
    runs: tuple[int, ...]
    first_attempt: int
    lease_token: str
    required: WeightsRequirement
    traceparent: str = ""
    has_turns: bool = False
    """True if turns of its runs are stored."""
    numbers_calls: bool = False
    """True if seeds of calls over the address follow from the call's number."""
    session_key: bytes = field(default=b"", repr=False)
    """Key of the addresses of its runs; empty if the buffer keeps no turns."""

    def new_task(self) -> JsonObject:
        """Returns a fresh copy of the task's row: a workflow's changes affect no other run."""
        row: JsonObject = json.loads(self.task_json)
        return row


@dataclass(frozen=True, slots=True)
class WorkGranted:
    """The buffer granted work."""

    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class NoWorkYet:
    """There is no work now."""

    reason: str
    waits_for: WaitKind = WaitKind.STATE


@dataclass(frozen=True, slots=True)
class StageDrained:
    """The stage will have no more work."""


@dataclass(frozen=True, slots=True)
class StageCancelled:
    """The stage was ended from outside."""

    reason: str


@dataclass(frozen=True, slots=True)
class ExplorerStopped:
    """This process takes no more work."""


LeaseResponse = WorkGranted | NoWorkYet | StageDrained | StageCancelled
StageEnd = StageDrained | StageCancelled | ExplorerStopped
"""The reason for the end of work in a stage."""


class EngineTurnState(StrEnum):
    """States of an explorer's turn on a device that its engine shares."""

    WANTED = "wanted"
    HELD = "held"
    RELEASED = "released"


class CommitOutcome(StrEnum):
    """The buffer's final decision on a result, after which it is never sent again."""

    COMMITTED = "committed"
    SUPERSEDED = "superseded"
    LATE = "late"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class ResultReport:
    """The buffer's report on a result."""

    outcome: CommitOutcome
    reason: str = ""
    """Reason of a rejection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at one run of an assignment."""

    key: StageKey
    assignment: Assignment
    run: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """The result of an attempt: its experiences, or the reason for the failure."""

    attempt: Attempt
    experiences: list[Experience] = field(default_factory=list)
    failure: str = ""
    duration_seconds: float = 0.0
    traceparent: str = ""

    @property
    def is_complete(self) -> bool:
        """True if the workflow ran to its end."""
        return not self.failure


def attempt_result_to_proto(result: AttemptResult) -> experience_pb2.RunResult:
    """Converts a result; raises ValueError when an experience is inconsistent."""
    attempt = result.attempt
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
        state=results.STATE_COMPLETE if result.is_complete else results.STATE_FAILED,
        reason=result.failure.encode(errors="replace").decode(),
        duration_seconds=result.duration_seconds,
        traceparent=result.traceparent,
    )
    for experience in result.experiences:
        set_experience(message.experiences.add(), experience, ref)
    return message


class AttemptApi(Protocol):
    """Serves the models of attempts at OpenAI-compatible addresses."""

    def register_attempt(
        self, model: "ModelWrapper", session: "Session | None" = None, *, secret: str = ""
    ) -> "ApiAccess":
        """Returns the address of a session, valid for as long as the attempt's model exists."""
        ...

    async def stop_api(self) -> None:
        """Stops the server."""
        ...
