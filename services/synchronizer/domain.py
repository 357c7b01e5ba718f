"""Experiments and their life cycle, as pure functions from one state to the next."""

import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from trinity.errors import InvalidRequest, NotFound, PreconditionFailed, Superseded
from trinity.weights.identity import same_weights


class ExperimentState(StrEnum):
    """Life cycle of an experiment."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ExperimentStageState(StrEnum):
    """Life cycle of a stage; FAILED also if its experiment was cancelled while it ran."""

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class Role(StrEnum):
    """Role of a member."""

    EXPLORER = "explorer"
    TRAINER = "trainer"
    BUFFER = "buffer"


class TurnState(StrEnum):
    """States of a role's turn on the device that it shares."""

    WANTED = "wanted"
    HELD = "held"
    RELEASED = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWish:
    """A role that wants the device; `since` is in seconds of the epoch."""

    role: Role
    reason: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNumber:
    """The place of a report among those of its role, by the clock of one start of a machine."""

    role: Role
    clock: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTurn:
    """The turn on a device that engine and trainer share.

    Reports of the two roles arrive in any order. The newest holder counts: a release is ignored if
    the other role has taken the device meanwhile. A report is also ignored if a later one of its
    role has arrived: an outdated wish would keep the other role waiting.
    """

    holder: Role | None = None
    process: str = ""
    reason: str = ""
    since: float = 0.0
    """When it took the device, or when the last one gave it back, in seconds of the epoch."""
    wishes: tuple[DeviceWish, ...] = ()
    last: tuple[ReportNumber, ...] = ()
    """The newest report of each role."""

    def after(self, report: "TurnReport", now: float) -> "DeviceTurn":
        """Returns the turn as it is once a role has reported."""
        number = report.number
        if any(
            (known.role, known.clock) == (number.role, number.clock)
            and number.sequence <= known.sequence
            for known in self.last
        ):
            return self
        others = tuple(known for known in self.last if known.role is not number.role)
        return replace(self._changed_by(report, now), last=(*others, number))

    def _changed_by(self, report: "TurnReport", now: float) -> "DeviceTurn":
        role = report.role
        others = tuple(wish for wish in self.wishes if wish.role is not role)
        match report.state:
            case TurnState.WANTED:
                if any(wish.role is role for wish in self.wishes):
                    return self
                wish = DeviceWish(role=role, reason=report.reason, since=now)
                return replace(self, wishes=(*self.wishes, wish))
            case TurnState.HELD:
                is_same = (self.holder, self.process) == (role, report.process)
                return DeviceTurn(
                    holder=role,
                    process=report.process,
                    reason=report.reason,
                    since=self.since if is_same and self.reason == report.reason else now,
                    wishes=others,
                    last=self.last,
                )
            case TurnState.RELEASED:
                if self.holder is not role:
                    return replace(self, wishes=others)
                return DeviceTurn(since=now, wishes=others, last=self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReport:
    """A role's report about the device."""

    role: Role
    state: TurnState
    process: str = ""
    reason: str = ""
    sequence: int
    """Grows by `clock`."""
    clock: str = ""

    @property
    def number(self) -> ReportNumber:
        """The report's place among those of its role."""
        return ReportNumber(role=self.role, clock=self.clock, sequence=self.sequence)


class VersionKind(StrEnum):
    """Kind of the files of a version."""

    FULL = "full"
    LORA = "lora"
    DELTA = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedVersion:
    """Published weights of a stage; the manifest in `path` has the hash `manifest_sha256`."""

    stage: str
    version: int
    incarnation: int
    kind: VersionKind
    base_version: int
    path: str
    manifest_sha256: bytes
    weights_sha256: bytes
    weights_blake3: bytes = b""
    parent_version: int
    offer_address: str = ""
    """Address at which its trainer transfers it from memory to memory; empty without an offer."""
    offer_group: str = ""
    copy: int = 0
    """Counts how often its files were written again under another path."""
    damage: str = ""
    """The damage found in its files, or an empty text."""

    def has_content_of(self, other: "PublishedVersion") -> bool:
        """Returns True if both versions have the same content hashes."""
        return self.manifest_sha256 == other.manifest_sha256 and self._has_weights_of(other)

    def replaces(self, other: "PublishedVersion") -> bool:
        """Returns True if this is a later copy of the same weights."""
        return self.copy > other.copy and self._has_weights_of(other)

    def _has_weights_of(self, other: "PublishedVersion") -> bool:
        return same_weights(self, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionKey:
    """The key of a version, without its content."""

    stage: str
    version: int
    incarnation: int
    copy: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """The part of a stage's plan that the synchronizer uses."""

    name: str
    roles: tuple[Role, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentStage:
    """One stage; it ends when all of `roles` are in `finished_roles`."""

    name: str
    state: ExperimentStageState = ExperimentStageState.PENDING
    roles: tuple[Role, ...]
    finished_roles: tuple[Role, ...] = ()
    final_version: PublishedVersion | None = None

    @property
    def is_done(self) -> bool:
        """True if no role has anything left to do."""
        return self.state is ExperimentStageState.FINISHED or set(self.roles) <= set(
            self.finished_roles
        )

    def reopened(self) -> "ExperimentStage":
        """Returns the stage as if no role had finished it."""
        pending = ExperimentStageState.PENDING
        return replace(self, state=pending, finished_roles=(), final_version=None)

    def with_finished_role(
        self, role: Role, final_version: PublishedVersion | None
    ) -> "ExperimentStage":
        """Records that a role has finished; the trainer names the final version of the stage."""
        if self.state is ExperimentStageState.PENDING:
            raise PreconditionFailed(f"stage {self.name} has not started")
        if role not in self.roles:
            raise InvalidRequest(f"role: the {role} has no part in stage {self.name}")
        if role in self.finished_roles:
            return self
        if role is Role.TRAINER:
            if final_version is None:
                raise InvalidRequest("final_version: the trainer must name it")
            return replace(
                self, finished_roles=(*self.finished_roles, role), final_version=final_version
            )
        return replace(self, finished_roles=(*self.finished_roles, role))


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One experiment. While it runs, exactly one stage runs: the first that is not finished."""

    id: uuid.UUID
    tenant: str
    label: str
    state: ExperimentState = ExperimentState.RUNNING
    reason: str = ""
    stages: tuple[ExperimentStage, ...]
    start_count: int = 1
    turn: DeviceTurn | None = None
    """None until one of its roles has said that it shares a device."""

    @classmethod
    def started(cls, tenant: str, label: str, plan: tuple[PlannedStage, ...]) -> "Experiment":
        """Creates an experiment whose first stage runs."""
        stages = tuple(ExperimentStage(name=stage.name, roles=stage.roles) for stage in plan)
        return cls(id=uuid.uuid4(), tenant=tenant, label=label, stages=stages)._advanced()

    @property
    def running_stage(self) -> ExperimentStage | None:
        """The running stage, if there is one."""
        return next((s for s in self.stages if s.state is ExperimentStageState.RUNNING), None)

    def stage(self, name: str) -> ExperimentStage:
        """Returns a stage by name.

        Raises: NotFound.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise NotFound(f"experiment {self.label} has no stage {name!r}")

    def resumed(self, plan: tuple[PlannedStage, ...], longer: Collection[str] = ()) -> "Experiment":
        """Resumes by a plan with the same stages; a finished experiment stays finished.

        It goes on if its last stage is one of those that the plan makes `longer`. An earlier stage
        is never reopened: a later one began with its weights.

        Raises: PreconditionFailed when the stages have other names.
        """
        known, wanted = [s.name for s in self.stages], [s.name for s in plan]
        if known != wanted:
            raise PreconditionFailed(
                f"experiment {self.label} has the stages {', '.join(known)}, the plan has "
                f"{', '.join(wanted)}: restore the stages, or give the experiment another name"
            )
        last = self.stages[-1]
        known_stages = self.stages
        if last.name in longer and last.finished_roles:
            known_stages = (*self.stages[:-1], last.reopened())
        elif self.state is ExperimentState.FINISHED:
            return self
        stages = tuple(
            stage if stage.is_done else replace(stage, roles=planned.roles)
            for stage, planned in zip(known_stages, plan, strict=True)
        )
        return replace(
            self,
            state=ExperimentState.RUNNING,
            reason="",
            stages=stages,
            start_count=self.start_count + 1,
        )._advanced()

    def with_finished_role(
        self, name: str, role: Role, final_version: PublishedVersion | None
    ) -> "Experiment":
        """Records that a role has finished; also after the end, for a later resume."""
        changed = self._with_stage(self.stage(name).with_finished_role(role, final_version))
        return changed._advanced() if self.state is ExperimentState.RUNNING else changed

    def with_damaged_version(self, name: str) -> "Experiment":
        """Asks the trainer of a running stage to look at its weights, though it had finished."""
        stage = self.stage(name)
        if stage.state is not ExperimentStageState.RUNNING:
            return self
        roles = tuple(role for role in stage.finished_roles if role is not Role.TRAINER)
        return self._with_stage(replace(stage, finished_roles=roles))

    def failed(self, name: str, reason: str, start_count: int | None = None) -> "Experiment":
        """Fails with a reason, unless it has ended, was restarted or the stage is finished."""
        stage = self.stage(name)
        if start_count not in (None, self.start_count):
            return self
        if (
            self.state is not ExperimentState.RUNNING
            or stage.state is ExperimentStageState.FINISHED
        ):
            return self
        return self._ended(ExperimentState.FAILED, reason)

    def cancelled(self, reason: str) -> "Experiment":
        """Cancels at a user's request, unless it has ended."""
        if self.state is not ExperimentState.RUNNING:
            return self
        return self._ended(ExperimentState.CANCELLED, reason)

    def _ended(self, state: ExperimentState, reason: str) -> "Experiment":
        stages = tuple(
            replace(s, state=ExperimentStageState.FAILED)
            if s.state is ExperimentStageState.RUNNING
            else s
            for s in self.stages
        )
        return replace(self, state=state, reason=reason, stages=stages)

    def _with_stage(self, changed: ExperimentStage) -> "Experiment":
        stages = tuple(changed if s.name == changed.name else s for s in self.stages)
        return replace(self, stages=stages)

    def _advanced(self) -> "Experiment":
        """Finishes stages that are done and starts the first that is not."""
        stages = list(self.stages)
        for index, stage in enumerate(stages):
            if not stage.is_done:
                stages[index] = replace(stage, state=ExperimentStageState.RUNNING)
                return replace(self, stages=tuple(stages))
            stages[index] = replace(stage, state=ExperimentStageState.FINISHED)
        return replace(self, stages=tuple(stages), state=ExperimentState.FINISHED)


def check_publication(
    new: PublishedVersion, same: PublishedVersion | None, newest: tuple[int, int] | None
) -> None:
    """Refuses weights of a superseded trainer, or that contradict published ones.

    `same` is the version published under the same numbers; `newest` is the highest incarnation of
    the stage with its highest version. What is published already may be reported again, also by
    a later life after a restore, whose incarnation is the newest then.
    """
    if same is not None and same.has_content_of(new) and same.copy == new.copy:
        return
    if newest is not None and new.incarnation < newest[0]:
        raise Superseded(
            f"incarnation {newest[0]} has published weights of stage {new.stage}; "
            f"incarnation {new.incarnation} must stop"
        )
    if same is not None:
        if not (same.has_content_of(new) or new.replaces(same) or same.replaces(new)):
            raise PreconditionFailed(
                f"version {new.version} of stage {new.stage}, incarnation {new.incarnation}, "
                f"is published with other content"
            )
    elif newest is not None and (new.incarnation, new.version) < newest:
        raise PreconditionFailed(
            f"incarnation {new.incarnation} has published version {newest[1]} of stage "
            f"{new.stage}; version {new.version} comes too late"
        )
