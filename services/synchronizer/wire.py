"""Conversion of protobuf messages from and to the domain, with checks of requests."""

import time
from enum import StrEnum
from typing import TypeVar, cast

from services.synchronizer import validation as check
from services.synchronizer.domain import (
    DeviceTurn,
    Experiment,
    ExperimentStage,
    ExperimentStageState,
    ExperimentState,
    PublishedVersion,
    Role,
    TurnReport,
    TurnState,
    VersionKey,
    VersionKind,
)
from services.synchronizer.members import ClosedWait, Member, MemberWait
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.errors import InvalidRequest
from trinity.runtime.members import MemberPhase
from trinity.runtime.presence import MEMBER_PHASES

MAX_WAITS = 1_000
MAX_PINNED_VERSIONS = 2_000
MAX_WAIT_BYTES = 32 * 1024
"""Limit for all waits of a member; the longest ones are kept."""
_PHASES = {number: phase for phase, number in MEMBER_PHASES.items()}
MAX_CLOSED_WAITS_TOLD = 200
"""In one heartbeat."""
MAX_CLOSED_REASON_LENGTH = 500
MAX_CLOSED_AGE_SECONDS = 86_400.0

EXPERIMENT_STATES = {
    ExperimentState.RUNNING: pb.EXPERIMENT_STATE_RUNNING,
    ExperimentState.FINISHED: pb.EXPERIMENT_STATE_FINISHED,
    ExperimentState.FAILED: pb.EXPERIMENT_STATE_FAILED,
    ExperimentState.CANCELLED: pb.EXPERIMENT_STATE_CANCELLED,
}
STAGE_STATES = {
    ExperimentStageState.PENDING: pb.STAGE_STATE_PENDING,
    ExperimentStageState.RUNNING: pb.STAGE_STATE_RUNNING,
    ExperimentStageState.FINISHED: pb.STAGE_STATE_FINISHED,
    ExperimentStageState.FAILED: pb.STAGE_STATE_FAILED,
}
ROLES = {
    Role.EXPLORER: pb.ROLE_EXPLORER,
    Role.TRAINER: pb.ROLE_TRAINER,
    Role.BUFFER: pb.ROLE_BUFFER,
}
VERSION_KINDS = {
    VersionKind.FULL: pb.Version.KIND_FULL,
    VersionKind.LORA: pb.Version.KIND_LORA,
    VersionKind.DELTA: pb.Version.KIND_DELTA,
}

TURN_STATES = {
    TurnState.WANTED: pb.RecordTurnRequest.STATE_WANTED,
    TurnState.HELD: pb.RecordTurnRequest.STATE_HELD,
    TurnState.RELEASED: pb.RecordTurnRequest.STATE_RELEASED,
}

NameT = TypeVar("NameT", bound=StrEnum)
NumberT = TypeVar("NumberT", bound=int)


def _named(number: int, names: dict[NameT, NumberT], field: str) -> NameT:
    for name, known in names.items():
        if known == number:
            return name
    raise InvalidRequest(f"{field}: {number} is not one of {', '.join(names)}")


def role_from_proto(number: int, field: str = "role") -> Role:
    """Converts a role."""
    return _named(number, ROLES, field)


def version_from_proto(message: pb.Version, field: str = "version") -> PublishedVersion:
    """Converts published weights."""
    return PublishedVersion(
        stage=check.text(message.stage, f"{field}.stage", check.MAX_NAME_LENGTH),
        version=check.at_least(message.version, 0, f"{field}.version"),
        incarnation=check.at_least(message.incarnation, 0, f"{field}.incarnation"),
        kind=_named(message.kind, VERSION_KINDS, f"{field}.kind"),
        base_version=check.at_least(message.base_version, 0, f"{field}.base_version"),
        path=check.text(message.path, f"{field}.path", check.MAX_TEXT_LENGTH),
        manifest_sha256=check.sha256(message.manifest_sha256, f"{field}.manifest_sha256"),
        weights_sha256=check.root(
            message.weights_sha256,
            f"{field}.weights_sha256",
            is_needed=not message.weights_blake3,
        ),
        weights_blake3=check.root(
            message.weights_blake3, f"{field}.weights_blake3", is_needed=False
        ),
        parent_version=check.at_least(message.parent_version, -1, f"{field}.parent_version"),
        offer_address=_short(message.offer.address, f"{field}.offer.address"),
        offer_group=_short(message.offer.group, f"{field}.offer.group"),
        copy=check.at_least(message.copy, 0, f"{field}.copy"),
    )


def _short(value: str, field: str) -> str:
    return check.text(value, field, check.MAX_NAME_LENGTH, may_be_empty=True)


def version_key_from_proto(message: pb.Version, field: str) -> VersionKey:
    """Converts the key of a version."""
    return VersionKey(
        stage=check.text(message.stage, f"{field}.stage", check.MAX_NAME_LENGTH),
        version=check.at_least(message.version, 0, f"{field}.version"),
        incarnation=check.at_least(message.incarnation, 0, f"{field}.incarnation"),
        copy=check.at_least(message.copy, 0, f"{field}.copy"),
    )


def version_to_proto(version: PublishedVersion, *, for_workers: bool) -> pb.Version:
    """Converts published weights; `for_workers` includes the address of their transfer offer and
    the damage of their files.
    """
    return pb.Version(
        stage=version.stage,
        version=version.version,
        incarnation=version.incarnation,
        kind=VERSION_KINDS[version.kind],
        base_version=version.base_version,
        path=version.path,
        manifest_sha256=version.manifest_sha256,
        weights_sha256=version.weights_sha256,
        weights_blake3=version.weights_blake3,
        parent_version=version.parent_version,
        offer=_offer_to_proto(version) if for_workers else None,
        copy=version.copy,
        damage=version.damage if for_workers else "",
    )


def _offer_to_proto(version: PublishedVersion) -> pb.TransferOffer | None:
    if not version.offer_address:
        return None
    return pb.TransferOffer(address=version.offer_address, group=version.offer_group)


def experiment_to_proto(experiment: Experiment) -> pb.Experiment:
    """Converts an experiment."""
    return pb.Experiment(
        id=str(experiment.id),
        tenant=experiment.tenant,
        label=experiment.label,
        state=EXPERIMENT_STATES[experiment.state],
        reason=experiment.reason,
        stages=[_stage_to_proto(stage) for stage in experiment.stages],
        start_count=experiment.start_count,
        turn=None if experiment.turn is None else _turn_to_proto(experiment.turn),
    )


def turn_report_from_proto(message: pb.RecordTurnRequest) -> TurnReport:
    """Converts a role's report on the shared device."""
    return TurnReport(
        role=role_from_proto(message.role),
        state=_named(message.state, TURN_STATES, "state"),
        process=check.sentence(message.process),
        reason=check.sentence(message.reason),
        sequence=check.at_least(message.sequence, 1, "sequence"),
        clock=check.text(message.clock, "clock", check.MAX_NAME_LENGTH, may_be_empty=True),
    )


def _turn_to_proto(turn: DeviceTurn) -> pb.DeviceTurn:
    now = time.time()
    return pb.DeviceTurn(
        holder=pb.ROLE_UNSPECIFIED if turn.holder is None else ROLES[turn.holder],
        process=turn.process,
        reason=turn.reason,
        held_seconds=max(now - turn.since, 0.0) if turn.since else 0.0,
        wishes=[
            pb.DeviceWish(
                role=ROLES[wish.role],
                reason=wish.reason,
                waited_seconds=max(now - wish.since, 0.0),
            )
            for wish in turn.wishes
        ],
    )


def _stage_to_proto(stage: ExperimentStage) -> pb.Stage:
    final = stage.final_version
    return pb.Stage(
        name=stage.name,
        state=STAGE_STATES[stage.state],
        roles=[ROLES[role] for role in stage.roles],
        finished_roles=[ROLES[role] for role in stage.finished_roles],
        final_version=version_to_proto(final, for_workers=False) if final else None,
    )


def member_from_proto(message: pb.Member) -> Member:
    """Converts the heartbeat of a member."""
    if len(message.waits) > MAX_WAITS or len(message.pinned_versions) > MAX_PINNED_VERSIONS:
        raise InvalidRequest("member: has too many waits or pinned versions")
    return Member(
        id=check.identifier(message.id, "member.id"),
        role=role_from_proto(message.role, "member.role"),
        address=check.text(
            message.address, "member.address", check.MAX_NAME_LENGTH, may_be_empty=True
        ),
        experiment_id=check.optional_identifier(message.experiment_id, "member.experiment_id"),
        stage=check.text(message.stage, "member.stage", check.MAX_NAME_LENGTH, may_be_empty=True),
        activity=check.sentence(message.activity),
        phase=_PHASES.get(message.phase, MemberPhase.WORKING),
        version=message.version,
        pinned_versions=tuple(message.pinned_versions),
        waits=_longest_waits(message),
    )


def _longest_waits(message: pb.Member) -> tuple[MemberWait, ...]:
    """Returns the longest waits as far as they fit: all that a member says is shown to people."""
    waits = sorted(map(_wait_from_proto, message.waits), key=lambda wait: -wait.waited_seconds)
    kept: list[MemberWait] = []
    num_bytes = 0
    for wait in waits:
        num_bytes += sum(len(part.encode()) for part in (wait.owner, wait.waits_for, wait.reason))
        if num_bytes > MAX_WAIT_BYTES:
            break
        kept.append(wait)
    return tuple(kept)


def _wait_from_proto(message: pb.Wait) -> MemberWait:
    return MemberWait(
        owner=check.sentence(message.owner),
        waits_for=check.sentence(message.waits_for),
        reason=check.sentence(message.reason),
        waited_seconds=check.seconds(message.waited_seconds, "member.waits.waited_seconds"),
        deadline_seconds=check.seconds(message.deadline_seconds, "member.waits.deadline_seconds"),
        kind=message.kind,
        experiment_id=check.sentence(message.experiment_id),
    )


def closed_waits_from_proto(request: pb.HeartbeatRequest, member: Member) -> tuple[ClosedWait, ...]:
    """Converts the waits of a heartbeat that have ended."""
    if len(request.closed_waits) > MAX_CLOSED_WAITS_TOLD:
        raise InvalidRequest(f"closed_waits: at most {MAX_CLOSED_WAITS_TOLD} are taken")
    return tuple(_closed_wait(wait, member) for wait in request.closed_waits)


def _closed_wait(message: pb.ClosedWait, member: Member) -> ClosedWait:
    return ClosedWait(
        number=check.at_least(message.number, 1, "closed_waits.number"),
        owner=check.sentence(message.owner),
        waits_for=check.sentence(message.waits_for),
        reason=check.sentence(message.reason)[:MAX_CLOSED_REASON_LENGTH],
        waited_seconds=check.seconds(message.waited_seconds, "closed_waits.waited_seconds"),
        ended_seconds_ago=min(
            check.seconds(message.ended_seconds_ago, "closed_waits.ended_seconds_ago"),
            MAX_CLOSED_AGE_SECONDS,
        ),
        experiment_id=check.optional_identifier(
            message.experiment_id, "closed_waits.experiment_id"
        ),
        stage=_short(message.stage, "closed_waits.stage"),
        member_id=member.id,
        role=member.role,
        address=member.address,
    )


def closed_wait_to_proto(wait: ClosedWait) -> pb.ClosedWait:
    """Converts a wait that has ended."""
    return pb.ClosedWait(
        number=wait.number,
        owner=wait.owner,
        waits_for=wait.waits_for,
        reason=wait.reason,
        waited_seconds=wait.waited_seconds,
        ended_seconds_ago=wait.ended_seconds_ago,
        experiment_id=str(wait.experiment_id or ""),
        stage=wait.stage,
        member_id=str(wait.member_id),
        role=ROLES[wait.role],
        address=wait.address,
    )


def member_to_proto(member: Member) -> pb.Member:
    """Converts a member."""
    return pb.Member(
        id=str(member.id),
        role=ROLES[member.role],
        address=member.address,
        experiment_id=str(member.experiment_id or ""),
        stage=member.stage,
        activity=member.activity,
        phase=MEMBER_PHASES[member.phase],
        version=member.version,
        pinned_versions=member.pinned_versions,
        waits=[_wait_to_proto(wait) for wait in member.waits],
        silent_seconds=member.silent_seconds,
    )


def _wait_to_proto(wait: MemberWait) -> pb.Wait:
    return pb.Wait(
        owner=wait.owner,
        waits_for=wait.waits_for,
        reason=wait.reason,
        waited_seconds=wait.waited_seconds,
        deadline_seconds=wait.deadline_seconds,
        kind=cast(pb.WaitKind, wait.kind),
        experiment_id=wait.experiment_id,
    )
