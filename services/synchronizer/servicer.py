"""The synchronizer's RPCs: check the request, run an operation, return its result."""

import logging
import uuid
from collections.abc import AsyncIterator, Sequence

import grpc

from services.synchronizer import validation as check
from services.synchronizer import wire
from services.synchronizer.domain import Experiment, PublishedVersion, Role
from services.synchronizer.members import HEARTBEAT_SECONDS, MAX_CLOSED_WAITS, Member
from services.synchronizer.operations import ExperimentUpdate, Operations, SystemState
from services.synchronizer.plan import planned_stages, without_secrets
from services.synchronizer.watching import WatchStreams
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceServicer
from trinity.errors import Forbidden, InvalidRequest
from trinity.runtime.rpc import audit
from trinity.runtime.rpc.answers import ANSWER_BYTES, ITEM_BYTES, fair_within, first_within
from trinity.runtime.rpc.bounds import clip_text
from trinity.runtime.security.authorization import Scope, current_caller

SHORT_TEXT_BYTES = 200
logger = logging.getLogger(__name__)
SERVICE_NAME = pb.DESCRIPTOR.services_by_name["SynchronizerService"].full_name
EVERY_EXPERIMENT = ""
ACTING_SCOPES = {Scope.EXPLORER, Scope.TRAINER}
"""Callers with these scopes get keys, passwords and transfer offers; others do not need them."""
MAX_VERSIONS = 10_000


def status_response(state: SystemState, max_bytes: int = ANSWER_BYTES) -> pb.GetStatusResponse:
    """Returns experiments and members, so that large ones cannot crowd out the others.

    Experiments get at most half of the bytes, closed waits an eighth. Members share the rest: those
    larger than their share are shortened.
    """
    all_experiments = [wire.experiment_to_proto(experiment) for experiment in state.experiments]
    experiments = fair_within(all_experiments, lambda experiment: experiment.tenant, max_bytes // 2)
    closed = _closed_waits(state, max_bytes // 8)
    used = sum(message.ByteSize() + ITEM_BYTES for message in (*experiments, *closed))
    members = _members(state.members, max_bytes - used)
    return pb.GetStatusResponse(
        experiments=experiments,
        members=members,
        closed_waits=closed,
        num_experiments_left_out=len(all_experiments) - len(experiments),
        num_members_left_out=len(state.members) - len(members),
    )


def _closed_waits(state: SystemState, max_bytes: int) -> list[pb.ClosedWait]:
    return first_within(map(wire.closed_wait_to_proto, state.closed_waits), max_bytes)


def _members(members: Sequence[Member], max_bytes: int) -> list[pb.Member]:
    if not members:
        return []
    tenants = {str(member.id): member.tenant for member in members}
    messages = [wire.member_to_proto(member) for member in members]
    share = max_bytes // len(messages) - ITEM_BYTES
    if sum(message.ByteSize() + ITEM_BYTES for message in messages) > max_bytes:
        for message in messages:
            shorten(message, share)
    return fair_within(messages, lambda message: tenants[message.id], max_bytes)


def shorten(member: pb.Member, max_bytes: int) -> None:
    """Removes the least important fields of a member until it has at most `max_bytes`."""
    if member.ByteSize() <= max_bytes:
        return
    member.is_shortened = True
    del member.pinned_versions[:]
    while member.waits and member.ByteSize() > max_bytes:
        del member.waits[-1]
    if member.ByteSize() > max_bytes:
        member.activity = clip_text(member.activity, SHORT_TEXT_BYTES)
        member.address = clip_text(member.address, SHORT_TEXT_BYTES)


def experiments_response(running: Sequence[Experiment]) -> pb.WatchExperimentsResponse:
    """Returns running experiments, of each tenant as many as of others."""
    messages = [wire.experiment_to_proto(experiment) for experiment in running]
    experiments = fair_within(messages, lambda experiment: experiment.tenant)
    return pb.WatchExperimentsResponse(
        experiments=experiments, num_experiments_left_out=len(messages) - len(experiments)
    )


def experiment_response(
    update: ExperimentUpdate, *, for_workers: bool
) -> pb.WatchExperimentResponse:
    """Returns an experiment with its newest versions, oldest first, half of them lost at most."""
    experiment = wire.experiment_to_proto(update.experiment)
    room = ANSWER_BYTES - experiment.ByteSize()
    lost = _newest(update.lost, room // 2, for_workers=for_workers)
    room -= sum(version.ByteSize() + ITEM_BYTES for version in lost)
    versions = _newest(update.versions, room, for_workers=for_workers)
    num_known = len(update.versions) + len(update.lost)
    return pb.WatchExperimentResponse(
        experiment=experiment,
        versions=versions,
        lost_versions=lost,
        num_versions_left_out=num_known - len(versions) - len(lost),
    )


def _newest(
    versions: Sequence[PublishedVersion], max_bytes: int, *, for_workers: bool
) -> list[pb.Version]:
    newest_first = (
        wire.version_to_proto(version, for_workers=for_workers) for version in reversed(versions)
    )
    return first_within(newest_first, max_bytes)[::-1]


class SynchronizerServicer(SynchronizerServiceServicer):
    """Answers RPCs; the proto documents the guarantees of each."""

    def __init__(self, *, operations: Operations, watching: WatchStreams) -> None:
        self._operations = operations
        self._watching = watching

    async def CreateExperiment(
        self, request: pb.CreateExperimentRequest, _: grpc.aio.ServicerContext
    ) -> pb.CreateExperimentResponse:
        tenant = check.text(request.tenant, "tenant", check.MAX_NAME_LENGTH)
        label = check.text(request.label, "label", check.MAX_NAME_LENGTH)
        plan = planned_stages(request.plan_json)
        created = await self._operations.create_experiment(
            tenant, label, plan, request.plan_json, keeps_running=request.keep_running
        )
        experiment = created.experiment
        logger.info(
            "experiment resumed" if created.resumed else "experiment created",
            extra={"experiment": label, "id": experiment.id, "starts": experiment.start_count},
        )
        return pb.CreateExperimentResponse(
            experiment=wire.experiment_to_proto(experiment), resumed=created.resumed
        )

    async def GetExperiment(
        self, request: pb.GetExperimentRequest, _: grpc.aio.ServicerContext
    ) -> pb.GetExperimentResponse:
        planned = await self._operations.get_experiment(_experiment_id(request.experiment_id))
        plan = planned.plan_json
        if not _acts_on_plans():
            plan = without_secrets(plan)
        return pb.GetExperimentResponse(
            experiment=wire.experiment_to_proto(planned.experiment), plan_json=plan
        )

    async def WatchExperiments(
        self, request: pb.WatchExperimentsRequest, _: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchExperimentsResponse]:
        tenant = check.text(request.tenant, "tenant", check.MAX_NAME_LENGTH, may_be_empty=True)
        states = self._watching.stream(
            EVERY_EXPERIMENT, lambda: self._operations.running_experiments(tenant)
        )
        async for running in states:
            yield experiments_response(running)

    async def WatchExperiment(
        self, request: pb.WatchExperimentRequest, _: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchExperimentResponse]:
        experiment_id = _experiment_id(request.experiment_id)
        states = self._watching.stream(
            str(experiment_id), lambda: self._operations.experiment_update(experiment_id)
        )
        acts = _acts_on_plans()
        async for watched in states:
            yield experiment_response(watched, for_workers=acts)

    async def PublishVersion(
        self, request: pb.PublishVersionRequest, _: grpc.aio.ServicerContext
    ) -> pb.PublishVersionResponse:
        experiment_id = _experiment_id(request.experiment_id)
        version = wire.version_from_proto(request.version)
        pinned = await self._operations.publish_version(experiment_id, version)
        logger.info(
            "version published",
            extra={
                "experiment_id": experiment_id,
                "stage": version.stage,
                "version": version.version,
                "incarnation": version.incarnation,
            },
        )
        return pb.PublishVersionResponse(pinned_versions=pinned)

    async def RetireVersions(
        self, request: pb.RetireVersionsRequest, _: grpc.aio.ServicerContext
    ) -> pb.RetireVersionsResponse:
        experiment_id = _experiment_id(request.experiment_id)
        if len(request.versions) > MAX_VERSIONS:
            raise InvalidRequest(f"versions: at most {MAX_VERSIONS} are taken")
        gone = tuple(wire.version_key_from_proto(v, "versions") for v in request.versions)
        damage = check.sentence(request.damage)
        await self._operations.retire_versions(experiment_id, gone, damage)
        if damage:
            logger.error("versions lost", extra={"experiment_id": experiment_id, "reason": damage})
        return pb.RetireVersionsResponse()

    async def ReportDamage(
        self, request: pb.ReportDamageRequest, _: grpc.aio.ServicerContext
    ) -> pb.ReportDamageResponse:
        experiment_id = _experiment_id(request.experiment_id)
        key = wire.version_key_from_proto(request.version, "version")
        reason = check.sentence(request.reason)
        if not reason:
            raise InvalidRequest("reason: is missing")
        if await self._operations.report_damage(experiment_id, key, reason):
            logger.warning(
                "version reported as damaged",
                extra={
                    "experiment_id": experiment_id,
                    "stage": key.stage,
                    "version": key.version,
                    "reason": reason,
                },
            )
        return pb.ReportDamageResponse()

    async def Heartbeat(
        self, request: pb.HeartbeatRequest, context: grpc.aio.ServicerContext
    ) -> pb.HeartbeatResponse:
        member, caller = wire.member_from_proto(request.member), current_caller()
        closed = wire.closed_waits_from_proto(request, member)
        if not await self._operations.record_heartbeat(member, caller.bound_tenant, closed):
            method = f"{SERVICE_NAME}/Heartbeat"
            peer, asked = context.peer(), str(member.id)
            audit.log_refusal("member", method=method, peer=peer, caller=caller, asked=asked)
            raise Forbidden("member.id: is that of another member")
        return pb.HeartbeatResponse(interval_seconds=HEARTBEAT_SECONDS)

    async def RecordTurn(
        self, request: pb.RecordTurnRequest, _: grpc.aio.ServicerContext
    ) -> pb.RecordTurnResponse:
        experiment_id = _experiment_id(request.experiment_id)
        report = wire.turn_report_from_proto(request)
        if await self._operations.record_turn(experiment_id, report):
            logger.debug(
                "turn on the device",
                extra={
                    "experiment_id": experiment_id,
                    "role": report.role,
                    "state": report.state,
                    "reason": report.reason,
                },
            )
        return pb.RecordTurnResponse()

    async def FinishRole(
        self, request: pb.FinishRoleRequest, _: grpc.aio.ServicerContext
    ) -> pb.FinishRoleResponse:
        experiment_id = _experiment_id(request.experiment_id)
        stage, role = _stage_name(request.stage), wire.role_from_proto(request.role)
        final_version = None
        if role is Role.TRAINER:
            final_version = wire.version_from_proto(request.final_version, "final_version")
            if final_version.stage != stage:
                raise InvalidRequest(f"final_version.stage: is not {stage!r}")
        state = await self._operations.finish_role(experiment_id, stage, role, final_version)
        logger.info(
            "role finished",
            extra={"experiment_id": experiment_id, "stage": stage, "role": role, "state": state},
        )
        return pb.FinishRoleResponse(state=wire.STAGE_STATES[state])

    async def FailStage(
        self, request: pb.FailStageRequest, _: grpc.aio.ServicerContext
    ) -> pb.FailStageResponse:
        experiment_id = _experiment_id(request.experiment_id)
        stage, role = _stage_name(request.stage), wire.role_from_proto(request.role)
        reason = check.sentence(request.reason)
        if not reason:
            raise InvalidRequest("reason: is missing")
        start_count = check.at_least(request.start_count, 0, "start_count")
        await self._operations.fail_stage(experiment_id, stage, reason, start_count or None)
        logger.error(
            "stage failed",
            extra={"experiment_id": experiment_id, "stage": stage, "role": role, "reason": reason},
        )
        return pb.FailStageResponse()

    async def CancelExperiment(
        self, request: pb.CancelExperimentRequest, _: grpc.aio.ServicerContext
    ) -> pb.CancelExperimentResponse:
        experiment_id = _experiment_id(request.experiment_id)
        await self._operations.cancel_experiment(experiment_id, check.sentence(request.reason))
        logger.info("experiment cancelled", extra={"experiment_id": experiment_id})
        return pb.CancelExperimentResponse()

    async def GetStatus(
        self, request: pb.GetStatusRequest, _: grpc.aio.ServicerContext
    ) -> pb.GetStatusResponse:
        experiment_id = check.optional_identifier(request.experiment_id, "experiment_id")
        label = check.text(request.label, "label", check.MAX_NAME_LENGTH, may_be_empty=True)
        tenant = current_caller().bound_tenant
        max_closed = check.at_least(request.max_closed_waits, 0, "max_closed_waits")
        state = await self._operations.system_state(
            experiment_id,
            tenant=tenant,
            label=label,
            max_closed_waits=min(max_closed, MAX_CLOSED_WAITS),
        )
        return status_response(state)


def _experiment_id(value: str) -> uuid.UUID:
    return check.identifier(value, "experiment_id")


def _stage_name(value: str) -> str:
    return check.text(value, "stage", check.MAX_NAME_LENGTH)


def _acts_on_plans() -> bool:
    return bool(current_caller().scopes & ACTING_SCOPES)
