"""The trainer's current state: read by status calls, sent with heartbeats."""

import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import grpc

from services.trainer import messages
from trinity.api.v1 import trainer_pb2, trainer_pb2_grpc
from trinity.api.v1.hosts_pb2 import HostMessage, LeaderMessage
from trinity.errors import PreconditionFailed
from trinity.runtime.members import MemberPhase, WaitKind
from trinity.runtime.presence import Heartbeats
from trinity.runtime.rpc.host_group import HostGroup
from trinity.runtime.telemetry import metrics, names
from trinity.runtime.telemetry.metrics import Observation

STAND_BY = "stand by"


@dataclass(slots=True)
class TrainerState:
    """One per process; changes go out with the next heartbeat."""

    trainer_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    address: str = ""
    """Address on which this trainer answers; empty where it cannot be called."""
    experiment_id: str = ""
    stage: str = ""
    activity: str = "starting"
    incarnation: int = 0
    step: int = 0
    """The newest step trained; lives that train again do not lower it."""
    num_ranks: int = 0
    num_gang_starts: int = 0
    heartbeats: Heartbeats | None = None
    save_and_stop: Callable[[str, str], Awaitable[int | None]] | None = None
    """Saves the step in hand of a tenant's experiment and returns its number, if there is one."""
    _waits: set[str] = field(default_factory=set)
    _progress_at: float = 0.0
    """By `time.monotonic`: the newest step trained the first time, or the stage's begin."""

    def __post_init__(self) -> None:
        metrics.SINCE_STEP_SECONDS.register_callback(self._since_step)

    def begin_stage(self, experiment_id: str, stage: str) -> None:
        """Records that work on a stage begins."""
        self.experiment_id, self.stage = experiment_id, stage
        self.incarnation = self.step = self.num_gang_starts = 0
        self._progress_at = time.monotonic()
        self.end_waits()
        if self.heartbeats is not None:
            self.heartbeats.set_work(experiment_id, stage)
        if experiment_id:
            self._set_activity("starting the ranks", MemberPhase.PREPARING)

    def set_idle(self) -> None:
        """Records that there is no stage to train."""
        self.begin_stage("", "")
        self._set_activity("waiting for a stage")

    def set_standby(self, stage: str) -> None:
        """Records that another trainer does the work."""
        if self.experiment_id:
            self.begin_stage("", "")
        self._set_activity("standing by")
        reason = f"it works on stage {stage}"
        self.set_wait(STAND_BY, waits_for="another trainer", reason=reason)

    def record_activity(self, report: messages.RankActivity) -> bool:
        """Records the first rank's report; returns True if a step was trained the first time."""
        is_progress = report.step > self.step
        self.incarnation = report.incarnation
        self.step = max(self.step, report.step)
        if is_progress:
            self._progress_at = time.monotonic()
        self._set_activity(report.activity, report.phase)
        if self.heartbeats is not None:
            self.heartbeats.set_version(report.version)
        return is_progress

    def record_rank_wait(self, rank: int, wait: messages.RankWaiting) -> None:
        """Records that a rank's wait continues, or is over."""
        name = f"rank {rank}: {wait.name}"
        if wait.waits_for:
            self.set_wait(
                name,
                waits_for=wait.waits_for,
                reason=wait.reason,
                deadline_seconds=wait.deadline_seconds,
                kind=wait.wait_kind,
            )
        else:
            self.clear_wait(name)

    def end_waits(self) -> None:
        """Clears all waits: the ranks that waited are gone, or do something else."""
        if self.heartbeats is not None:
            for name in self._waits:
                self.heartbeats.waits.clear(name)
        self._waits.clear()

    def set_wait(
        self,
        name: str,
        *,
        waits_for: str,
        reason: str,
        deadline_seconds: float = 0.0,
        waited_seconds: float = 0.0,
        kind: WaitKind = WaitKind.STATE,
    ) -> None:
        """Records a wait, as `WaitRegistry.set` does; it ends with the ranks at the latest."""
        self._waits.add(name)
        if self.heartbeats is not None:
            self.heartbeats.waits.set(
                name,
                waits_for=waits_for,
                reason=reason,
                deadline_seconds=deadline_seconds,
                waited_seconds=waited_seconds,
                kind=kind,
            )

    def clear_wait(self, name: str, *, told_from: float | None = None) -> None:
        """Clears a wait, as `WaitRegistry.clear` does."""
        if self.heartbeats is not None:
            self.heartbeats.waits.clear(name, told_from=told_from)

    def _since_step(self) -> list[Observation]:
        """Returns the seconds without progress; nothing while there is no stage to train."""
        if not self.experiment_id:
            return []
        return [(time.monotonic() - self._progress_at, {names.STAGE: self.stage})]

    def _set_activity(self, activity: str, phase: MemberPhase = MemberPhase.WORKING) -> None:
        self.activity = activity
        if self.heartbeats is not None:
            self.heartbeats.set_activity(activity, phase)


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    """Answers from the state; passes the streams of other hosts to the leader's `HostGroup`."""

    def __init__(self, state: TrainerState, hosts: HostGroup | None = None) -> None:
        self._state = state
        self._hosts = hosts

    async def JoinGang(
        self,
        request_iterator: AsyncIterator[HostMessage],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[LeaderMessage]:
        """Serves the stream of another host of the gang.

        Raises: PreconditionFailed if this trainer does not lead several hosts.
        """
        del context
        if self._hosts is None:
            await anext(request_iterator, None)  # a token of another tenant is refused here
            raise PreconditionFailed(
                "this trainer does not lead several hosts: give it TRINITY_TRAINER_NUM_HOSTS, "
                "and no TRINITY_TRAINER_HOST"
            )
        async for response in self._hosts.serve(request_iterator):
            yield response

    async def StopTraining(
        self, request: trainer_pb2.StopTrainingRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.StopTrainingResponse:
        """Has the step in hand saved, and waits for it."""
        del context
        save = self._state.save_and_stop
        step = None if save is None else await save(request.tenant, request.experiment_id)
        return trainer_pb2.StopTrainingResponse(saved=step is not None, step=step or 0)

    async def GetTrainerStatus(
        self, request: trainer_pb2.GetTrainerStatusRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.GetTrainerStatusResponse:
        """Answers from the state alone."""
        del request, context
        state = self._state
        return trainer_pb2.GetTrainerStatusResponse(
            trainer_id=state.trainer_id,
            experiment_id=state.experiment_id,
            stage=state.stage,
            activity=state.activity,
            incarnation=state.incarnation,
            step=state.step,
            num_ranks=state.num_ranks,
            num_gang_starts=state.num_gang_starts,
        )
