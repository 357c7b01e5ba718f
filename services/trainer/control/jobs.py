"""Watches the synchronizer for stages to train, and both peers for the trainer's readiness."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError

from services.trainer.messages import StageOrder
from trinity.api.v1 import synchronizer_pb2
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.errors import UserError
from trinity.runtime.members import WaitKind
from trinity.runtime.presence import MEMBER_TIMEOUT_SECONDS, WaitRegistry
from trinity.runtime.rpc.health import Health
from trinity.runtime.rpc.limits import CALL_SECONDS

logger = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.3
TRAINER = synchronizer_pb2.ROLE_TRAINER
RUNNING = synchronizer_pb2.STAGE_STATE_RUNNING
BUFFER_SERVICE = "trinity.api.v1.BufferService"


@dataclass(frozen=True, slots=True)
class StageStartKey:
    """A stage of one start of an experiment."""

    experiment_id: str
    stage: str
    start_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A stage to train."""

    key: StageStartKey
    order: StageOrder
    num_ranks: int
    silence_seconds: float
    """Time limit for ranks without a sign of life."""


class StageWatcher:
    """Keeps the synchronizer's newest view of the experiments.

    `follow` runs as a task; the others read.

        seen = watcher.update_count
        if not watcher.stages_to_train():
            await watcher.wait_for_update(seen)
    """

    def __init__(self, stub: SynchronizerServiceStub, tenant: str = "") -> None:
        self._stub = stub
        self._tenant = tenant
        self._experiments: list[synchronizer_pb2.Experiment] = []
        self._changed = asyncio.Event()
        self.update_count = 0
        self.is_connected = False
        self._is_outage_logged = False

    async def follow(self) -> None:
        """Follows the stream until cancelled, reopening it whenever it breaks."""
        while True:
            try:
                request = synchronizer_pb2.WatchExperimentsRequest(tenant=self._tenant)
                async for answer in self._stub.WatchExperiments(request):
                    self._experiments = list(answer.experiments)
                    self._record_update(is_connected=True)
            except grpc.aio.AioRpcError as error:
                self._log_outage_once(error)
            self._record_update(is_connected=False)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def wait_for_update(self, seen: int) -> None:
        """Waits until there are more updates than the caller has seen."""
        while self.update_count == seen:
            await self._changed.wait()

    def stages_to_train(self) -> list[StageStartKey]:
        """Returns running stages whose trainer is not done, oldest experiment first."""
        return [
            StageStartKey(experiment.id, stage.name, experiment.start_count)
            for experiment in self._experiments
            for stage in experiment.stages
            if stage.state == RUNNING
            and TRAINER in stage.roles
            and TRAINER not in stage.finished_roles
        ]

    def is_to_be_trained(self, key: StageStartKey) -> bool:
        """Returns True if the stage is to be trained, in this very start of the experiment."""
        return key in self.stages_to_train()

    def has_later_start(self, key: StageStartKey) -> bool:
        """Returns True if the stage is to be trained in a later start of the experiment."""
        return any(
            (other.experiment_id, other.stage) == (key.experiment_id, key.stage)
            and other.start_count > key.start_count
            for other in self.stages_to_train()
        )

    async def load_job(
        self,
        key: StageStartKey,
        *,
        trainer_id: str,
        buffer: str,
        synchronizer: str,
        transfer_host: str = "127.0.0.1",
    ) -> TrainingJob:
        """Returns all that ranks need to train the stage.

        Raises: UserError when the plan is not of this version.
        """
        request = synchronizer_pb2.GetExperimentRequest(experiment_id=key.experiment_id)
        answer = await self._stub.GetExperiment(request, timeout=CALL_SECONDS)
        plan = _plan_of(answer.plan_json)
        stage = _stage_of(plan, key.stage)
        start = _start_of(answer.experiment, stage.index)
        order = StageOrder(
            tenant=answer.experiment.tenant,
            experiment_id=key.experiment_id,
            stage=key.stage,
            seed=plan.seed,
            plan_json=stage.model_dump_json(),
            job_dir=plan.job_dir,
            start_path=start.path or stage.model_path,
            start_manifest_sha256=start.manifest_sha256.hex(),
            trainer_id=trainer_id,
            buffer_address=buffer,
            synchronizer_address=synchronizer,
            transfer_host=transfer_host,
        )
        return TrainingJob(
            key=key,
            order=order,
            num_ranks=stage.trainer_rank_num,
            silence_seconds=stage.config.synchronizer.sync_timeout,
        )

    async def is_trained_by_another(
        self, key: StageStartKey, *, trainer_id: str, address: str
    ) -> bool:
        """Returns True if another live trainer works on the stage.

        A member at this trainer's own address is the process that this one replaced; it is ignored.
        """
        request = synchronizer_pb2.GetStatusRequest(experiment_id=key.experiment_id)
        answer = await self._stub.GetStatus(request, timeout=CALL_SECONDS)
        return any(
            member.role == TRAINER
            and member.id != trainer_id
            and not (address and member.address == address)
            and (member.experiment_id, member.stage) == (key.experiment_id, key.stage)
            and member.silent_seconds <= MEMBER_TIMEOUT_SECONDS
            for member in answer.members
        )

    async def fail(self, key: StageStartKey, reason: str) -> None:
        """Ends the experiment with a reason."""
        request = synchronizer_pb2.FailStageRequest(
            experiment_id=key.experiment_id,
            stage=key.stage,
            role=TRAINER,
            reason=reason,
            start_count=key.start_count,
        )
        await self._stub.FailStage(request, timeout=CALL_SECONDS)

    def _log_outage_once(self, error: grpc.aio.AioRpcError) -> None:
        """Logs an outage once, however many attempts fail."""
        if not self._is_outage_logged:
            logger.info("the synchronizer does not answer", extra={"reason": error.details()})
        self._is_outage_logged = True

    def _record_update(self, *, is_connected: bool) -> None:
        self._is_outage_logged = self._is_outage_logged and not is_connected
        self.is_connected = is_connected
        self.update_count += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _plan_of(text: str) -> ExperimentPlan:
    try:
        return ExperimentPlan.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"its plan cannot be read: {where}: {first['msg']}; run one version of every service"
        ) from error


def _stage_of(plan: ExperimentPlan, name: str) -> StagePlan:
    for stage in plan.stages:
        if stage.name == name and stage.trainer_rank_num >= 1:
            return stage
    raise UserError(f"its plan has no stage {name} with a rank to train it")


def _start_of(experiment: synchronizer_pb2.Experiment, index: int) -> synchronizer_pb2.Version:
    """Returns the final version of the nearest earlier stage; empty for the user's model."""
    for stage in reversed(experiment.stages[:index]):
        if stage.final_version.path:
            return stage.final_version
    return synchronizer_pb2.Version()


class ReadinessCondition(StrEnum):
    """A condition; the value is the message while it is not met."""

    SYNCHRONIZER = "the synchronizer does not answer"
    BUFFER = "the buffer does not answer"
    GANG = "a stage is wanted and its ranks are not started"


WAITS_FOR = {
    ReadinessCondition.SYNCHRONIZER: "synchronizer",
    ReadinessCondition.BUFFER: "buffer",
    ReadinessCondition.GANG: "ranks",
}


class TrainerReadiness:
    """Tracks unmet conditions; the trainer is ready if all are met.

    At first both peers are missing. An unmet condition is shown as a wait.
    """

    def __init__(self, waits: WaitRegistry | None = None) -> None:
        self._unmet: set[ReadinessCondition] = set()
        self._changed = asyncio.Event()
        self._waits = waits
        for condition in (ReadinessCondition.SYNCHRONIZER, ReadinessCondition.BUFFER):
            self.set_met(condition, is_met=False)

    def set_met(self, condition: ReadinessCondition, *, is_met: bool) -> None:
        """Records whether a condition is met."""
        before = set(self._unmet)
        if is_met:
            self._unmet.discard(condition)
        else:
            self._unmet.add(condition)
        if self._unmet != before:
            self._changed.set()
            self._show_wait(condition, is_met=is_met)

    def mark_met(self, condition: ReadinessCondition) -> None:
        """Records that a condition is met."""
        self.set_met(condition, is_met=True)

    def loops(
        self, watcher: StageWatcher, buffer: grpc.aio.Channel, health: Health
    ) -> dict[str, Callable[[], Awaitable[None]]]:
        """Returns what tracks the conditions and reports them, each until it is cancelled."""
        return {
            "watch of the synchronizer": lambda: self.track_synchronizer(watcher),
            "watch of the buffer": lambda: self.track_buffer(buffer),
            "readiness": lambda: self.report_to_health(health),
        }

    async def report_to_health(self, health: Health) -> None:
        """Reports every change to the health service, until cancelled."""
        while True:
            self._changed.clear()
            await health.set_ready(not self._unmet, "; ".join(sorted(self._unmet)))
            await self._changed.wait()

    def _show_wait(self, condition: ReadinessCondition, *, is_met: bool) -> None:
        """Shows the condition as a wait without a deadline; the ranks have their own deadlines."""
        if self._waits is None:
            return
        if is_met:
            self._waits.clear(condition.name)
        else:
            silent = condition is not ReadinessCondition.GANG
            self._waits.set(
                condition.name,
                waits_for=WAITS_FOR[condition],
                reason=condition.value,
                kind=WaitKind.NO_ANSWER if silent else WaitKind.STATE,
            )

    async def track_synchronizer(self, watcher: StageWatcher) -> None:
        """Tracks whether the synchronizer answers, until cancelled."""
        while True:
            seen = watcher.update_count
            self.set_met(ReadinessCondition.SYNCHRONIZER, is_met=watcher.is_connected)
            await watcher.wait_for_update(seen)

    async def track_buffer(self, channel: grpc.aio.Channel) -> None:
        """Tracks whether the buffer reports itself ready, until cancelled."""
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=BUFFER_SERVICE)
        while True:
            try:
                async for answer in stub.Watch(request):
                    is_ready = answer.status == health_pb2.HealthCheckResponse.SERVING
                    self.set_met(ReadinessCondition.BUFFER, is_met=is_ready)
            except grpc.aio.AioRpcError:
                pass
            self.set_met(ReadinessCondition.BUFFER, is_met=False)
            await asyncio.sleep(RECONNECT_SECONDS)
