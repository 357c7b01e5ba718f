"""Client of the synchronizer service: takes and returns domain values."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from pydantic import ValidationError

from services.explorer.clients.watch_feed import iterate_until_deadline
from services.explorer.types import EngineTurnState, LostWeights, WeightsId, WeightsVersion
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.runtime.device_lock import ReportPlace
from trinity.runtime.presence import MEMBER_TIMEOUT_SECONDS
from trinity.runtime.rpc.errors import translate_rpc_errors
from trinity.runtime.rpc.limits import CALL_SECONDS
from trinity.weights.offer import OfferAddress

SERVICE = "trinity.api.v1.SynchronizerService"
STREAM_SECONDS = 600.0
"""Streams are reopened periodically, which ends a broken one that went unnoticed."""


_TURN_STATES = {
    EngineTurnState.WANTED: pb.RecordTurnRequest.STATE_WANTED,
    EngineTurnState.HELD: pb.RecordTurnRequest.STATE_HELD,
    EngineTurnState.RELEASED: pb.RecordTurnRequest.STATE_RELEASED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerStageState:
    """The explorer's view of a stage."""

    name: str
    is_running: bool
    is_finished: bool
    """Finished, failed, or without work for an explorer."""
    final: WeightsVersion | None = None
    """The weights that its training ended with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorerExperimentState:
    """The explorer's view of an experiment."""

    id: str
    tenant: str
    is_running: bool
    start_count: int
    stages: tuple[ExplorerStageState, ...]
    trainer_wants_device: bool = False
    """True if the trainer waits for the device that the engine shares with it."""

    def stage(self, name: str) -> ExplorerStageState | None:
        """Returns the stage of that name, if there is one."""
        return next((stage for stage in self.stages if stage.name == name), None)


@dataclass(frozen=True, slots=True)
class WatchedExperiment:
    """An experiment, and the weights of its running stage that can be loaded or are lost."""

    experiment: ExplorerExperimentState
    weights: tuple[WeightsVersion, ...]
    lost: tuple[LostWeights, ...] = ()


class ExplorerSynchronizerClient:
    """Calls the synchronizer; every call raises an RpcError when it fails."""

    def __init__(self, channel: grpc.aio.Channel, tenant: str = "") -> None:
        self.stub = SynchronizerServiceStub(channel)
        self._tenant = tenant

    async def watch_experiments(self) -> AsyncIterator[tuple[ExplorerExperimentState, ...]]:
        """Streams the tenant's running experiments, oldest first, at each change."""
        request = pb.WatchExperimentsRequest(tenant=self._tenant)
        stream = self.stub.WatchExperiments(request, timeout=STREAM_SECONDS)
        async for response in iterate_until_deadline("synchronizer", stream):
            yield tuple(map(_experiment, response.experiments))

    async def watch_experiment(self, experiment_id: str) -> AsyncIterator[WatchedExperiment]:
        """Streams one experiment and its weights at each change."""
        request = pb.WatchExperimentRequest(experiment_id=experiment_id)
        stream = self.stub.WatchExperiment(request, timeout=STREAM_SECONDS)
        async for response in iterate_until_deadline("synchronizer", stream):
            yield WatchedExperiment(
                _experiment(response.experiment),
                tuple(map(_weights, response.versions)),
                tuple(map(_lost, response.lost_versions)),
            )

    async def plan(self, experiment_id: str) -> ExperimentPlan:
        """Returns the plan of an experiment.

        Raises: UserError when another version of the software wrote it.
        """
        response = await self._get(experiment_id)
        try:
            return ExperimentPlan.model_validate_json(response.plan_json)
        except ValidationError as error:
            raise UserError(
                f"the plan of experiment {experiment_id} cannot be read: "
                f"{error.errors()[0]['msg']}; run one version of every service"
            ) from error

    async def experiment(self, experiment_id: str) -> ExplorerExperimentState:
        """Returns the current state of an experiment."""
        return _experiment((await self._get(experiment_id)).experiment)

    async def count_other_explorers(self, own: pb.Member) -> Counter[str]:
        """Counts the other live explorers that work on each experiment.

        A member at this explorer's own address is its predecessor, and is not counted.
        """
        with translate_rpc_errors("synchronizer"):
            response: pb.GetStatusResponse = await self.stub.GetStatus(
                pb.GetStatusRequest(), timeout=CALL_SECONDS
            )
        return Counter(
            member.experiment_id
            for member in response.members
            if member.role == pb.ROLE_EXPLORER
            and member.id != own.id
            and not (own.address and member.address == own.address)
            and member.silent_seconds <= MEMBER_TIMEOUT_SECONDS
        )

    async def finish_role(self, experiment_id: str, stage: str) -> None:
        """Reports that the explorer's part of a stage is done."""
        request = pb.FinishRoleRequest(
            experiment_id=experiment_id, stage=stage, role=pb.ROLE_EXPLORER
        )
        with translate_rpc_errors("synchronizer"):
            await self.stub.FinishRole(request, timeout=CALL_SECONDS)

    async def report_damage(
        self, experiment_id: str, stage: str, weights: WeightsVersion, reason: str
    ) -> None:
        """Reports weights whose files are not as announced; the trainer looks for itself."""
        version = pb.Version(
            stage=stage,
            version=weights.id.version,
            incarnation=weights.id.incarnation,
            copy=weights.copy,
        )
        request = pb.ReportDamageRequest(
            experiment_id=experiment_id, version=version, reason=reason
        )
        with translate_rpc_errors("synchronizer"):
            await self.stub.ReportDamage(request, timeout=CALL_SECONDS)

    async def record_turn(
        self,
        experiment_id: str,
        state: EngineTurnState,
        place: ReportPlace,
        *,
        process: str,
        reason: str,
    ) -> None:
        """Reports where this explorer's engine stands with the device that it shares."""
        request = pb.RecordTurnRequest(
            experiment_id=experiment_id,
            role=pb.ROLE_EXPLORER,
            state=_TURN_STATES[state],
            process=process,
            reason=reason,
            sequence=place.sequence,
            clock=place.clock,
        )
        with translate_rpc_errors("synchronizer"):
            await self.stub.RecordTurn(request, timeout=CALL_SECONDS)

    async def fail_stage(
        self, experiment: ExplorerExperimentState, stage: str, reason: str
    ) -> None:
        """Ends this start of the experiment with a reason that a person can act on."""
        request = pb.FailStageRequest(
            experiment_id=experiment.id,
            stage=stage,
            role=pb.ROLE_EXPLORER,
            reason=reason,
            start_count=experiment.start_count,
        )
        with translate_rpc_errors("synchronizer"):
            await self.stub.FailStage(request, timeout=CALL_SECONDS)

    async def _get(self, experiment_id: str) -> pb.GetExperimentResponse:
        request = pb.GetExperimentRequest(experiment_id=experiment_id)
        with translate_rpc_errors("synchronizer"):
            response: pb.GetExperimentResponse = await self.stub.GetExperiment(
                request, timeout=CALL_SECONDS
            )
        return response


def _experiment(message: pb.Experiment) -> ExplorerExperimentState:
    return ExplorerExperimentState(
        id=message.id,
        tenant=message.tenant,
        is_running=message.state == pb.EXPERIMENT_STATE_RUNNING,
        start_count=message.start_count,
        stages=tuple(map(_stage, message.stages)),
        trainer_wants_device=any(wish.role == pb.ROLE_TRAINER for wish in message.turn.wishes),
    )


def _stage(message: pb.Stage) -> ExplorerStageState:
    has_part = pb.ROLE_EXPLORER in message.roles
    is_done = pb.ROLE_EXPLORER in message.finished_roles
    is_open = message.state in (pb.STAGE_STATE_PENDING, pb.STAGE_STATE_RUNNING)
    return ExplorerStageState(
        name=message.name,
        is_running=message.state == pb.STAGE_STATE_RUNNING,
        is_finished=not has_part or is_done or not is_open,
        final=_weights(message.final_version) if message.final_version.path else None,
    )


def _weights(message: pb.Version) -> WeightsVersion:
    return WeightsVersion(
        id=WeightsId(version=message.version, incarnation=message.incarnation),
        path=Path(message.path),
        manifest_sha256=message.manifest_sha256,
        weights_sha256=message.weights_sha256,
        weights_blake3=message.weights_blake3,
        offer=_offer(message),
        copy=message.copy,
    )


def _lost(message: pb.Version) -> LostWeights:
    return LostWeights(
        id=WeightsId(version=message.version, incarnation=message.incarnation),
        damage=message.damage,
    )


def _offer(message: pb.Version) -> OfferAddress | None:
    if not message.HasField("offer"):
        return None
    return OfferAddress(address=message.offer.address, group=message.offer.group)
