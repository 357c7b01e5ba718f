"""Calls about stages."""

from dataclasses import dataclass

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.advantages import AdvantageFailed
from services.buffer.domain.stage import Stage, parse_plan
from services.buffer.domain.states import AssignmentState, ExperienceState, StageState
from services.buffer.handlers.ending import end_stage
from services.buffer.handlers.open_stage import needed_tasksets, open_stage
from services.buffer.servicer.convert import key_of, text_of, uuid_of
from services.buffer.servicer.parts import Context, Parts
from services.buffer.store.assignments import count_assignments
from services.buffer.store.database import tasksets_topic
from services.buffer.store.experiences import count_state
from services.buffer.store.reports import count_dead_letters
from services.buffer.store.stages import list_unfinished, lock_stage, stage_tasksets
from services.buffer.tasksets import Resolved
from services.buffer.wire import subject_of
from trinity.api.v1 import buffer_pb2 as pb
from trinity.codec import stage_key_to_proto
from trinity.config import StagePlan
from trinity.errors import InvalidRequest, PreconditionFailed, Unavailable

Opened = pb.OpenStageResponse
READ_SECONDS = 5.0
"""How long a call waits for tasksets that are being read or awaited."""
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class TasksetLook:
    """What one look at the tasksets of a stage gave."""

    answer: Resolved
    look_again_seconds: float | None = None

    @property
    def is_final(self) -> bool:
        """Whether all are stored."""
        return not self.answer.awaited


class StageCalls(Parts):
    """OpenStage, CancelStage, GetBufferStatus."""

    async def OpenStage(self, request: pb.OpenStageRequest, _: Context) -> pb.OpenStageResponse:
        """Enter the stage once its tasksets are stored; small files are by the time we answer."""
        key = key_of(request.key)
        plan = _plan_of(request.plan_json)
        await self._check_parts(plan)
        needed = needed_tasksets(plan)
        async with self.database.transaction() as connection:
            known = await stage_tasksets(connection, key)
        missing = [one for one in needed if one.name not in known]

        async def look() -> TasksetLook:
            return TasksetLook(await self.library.resolve(key.tenant, missing))

        resolved = await self.poller.poll(tasksets_topic(key.tenant), READ_SECONDS, look)
        if resolved.awaited:
            reason = "; ".join(resolved.awaited)
            return Opened(state=Opened.STATE_READING, reason=reason)
        tasksets = [*(known[one.name] for one in needed if one.name in known), *resolved.stored]
        async with self.database.transaction() as connection:
            stage = await open_stage(connection, key, request.plan_json, request.seed, tasksets)
        return Opened(
            state=Opened.STATE_OPEN,
            num_tasks=stage.num_rows,
            total_train_steps=stage.total_train_steps,
            total_explore_steps=stage.total_explore_steps,
        )

    async def _check_parts(self, plan: StagePlan) -> None:
        """What the pipeline will call must be there before anything is rolled out."""
        name = plan.algorithm.advantage_fn
        try:
            await self.advantages.load(name)
        except AdvantageFailed as error:
            raise PreconditionFailed(f"advantage_fn {name}: {error}") from error

    async def CancelStage(
        self, request: pb.CancelStageRequest, _: Context
    ) -> pb.CancelStageResponse:
        """End a stage early; one that has ended stays as it is."""
        reason = text_of(request.reason, "reason") or "cancelled without a reason"
        async with self.database.transaction() as connection:
            stage = await lock_stage(connection, key_of(request.key))
            if not stage.is_open:
                return pb.CancelStageResponse(num_revoked=0)
            num_revoked = await end_stage(connection, stage, StageState.CANCELLED, reason)
        return pb.CancelStageResponse(num_revoked=num_revoked)

    async def GetBufferStatus(
        self, request: pb.GetBufferStatusRequest, _: Context
    ) -> pb.GetBufferStatusResponse:
        """Describe what is open."""
        experiment = request.experiment_id
        wanted = uuid_of(experiment, "experiment_id") if experiment else ""
        try:
            num_pending = await self.stream.num_pending()
        except Unavailable:
            num_pending = UNKNOWN
        async with self.database.transaction() as connection:
            stages = await list_unfinished(connection, request.tenant, wanted)
            return pb.GetBufferStatusResponse(
                stages=[await _describe(connection, stage, num_pending) for stage in stages]
            )


def _plan_of(text: str) -> StagePlan:
    try:
        return parse_plan(text)
    except ValidationError as error:
        raise InvalidRequest(f"plan_json is not a stage's plan: {error.errors()[0]}") from error


async def _describe(
    connection: AsyncConnection, stage: Stage, num_stream_pending: int
) -> pb.StageStatus:
    counts = await count_assignments(connection, stage.key)
    return pb.StageStatus(
        key=stage_key_to_proto(stage.key),
        explore_step=stage.explore_step,
        trained_step=stage.trained_step,
        num_pending=counts.get(AssignmentState.PENDING, 0),
        num_leased=counts.get(AssignmentState.LEASED, 0),
        num_ready=await count_state(connection, stage.key, ExperienceState.READY),
        num_dead_letters=await count_dead_letters(connection, subject_of(stage.key)),
        num_stream_pending=num_stream_pending,
    )
