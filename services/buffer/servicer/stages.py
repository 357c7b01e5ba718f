"""RPC methods about stages."""

import asyncio
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.operator import Chain
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import AssignmentState, ExperienceState, StageState
from services.buffer.functions import FunctionFailed
from services.buffer.handlers.ending import end_stage
from services.buffer.handlers.open_stage import needed_tasksets, open_stage
from services.buffer.handlers.replaying import NUM_DROPPED
from services.buffer.priorities import PriorityFailed
from services.buffer.servicer.convert import (
    key_of,
    name_of,
    pipeline_to_proto,
    sentence_of,
    uuid_of,
)
from services.buffer.servicer.parts import Context, Parts
from services.buffer.servicer.plans import plan_of
from services.buffer.store.assignments import count_open, count_refills
from services.buffer.store.batches import sum_metric
from services.buffer.store.database import tasksets_topic
from services.buffer.store.experiences import count_state
from services.buffer.store.pace import losses, pace
from services.buffer.store.replay_pool import count_replayed
from services.buffer.store.reports import count_dead_letters
from services.buffer.store.stages import list_unfinished, lock_stage, stage_tasksets
from services.buffer.store.task_pipelines import stage_pipelines
from services.buffer.tasksets import Resolved
from services.buffer.wire import subject_of
from trinity.api.v1 import buffer_pb2 as pb
from trinity.codec import stage_key_to_proto
from trinity.config.plan import StagePlan
from trinity.config.plan_parts import ResolvedReplay
from trinity.errors import PreconditionFailed, Unavailable

Opened = pb.OpenStageResponse
READ_SECONDS = 5.0
"""Time that a call waits for tasksets that are being read or awaited."""
BROKER_SECONDS = 1.0
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class TasksetLook:
    """The result of one poll for the tasksets of a stage."""

    answer: Resolved
    look_again_seconds: float | None = None

    @property
    def is_final(self) -> bool:
        """True if all tasksets are stored."""
        return not self.answer.awaited


class StageCalls(Parts):
    """OpenStage, CancelStage, GetBufferStatus."""

    async def OpenStage(self, request: pb.OpenStageRequest, _: Context) -> pb.OpenStageResponse:
        """Opens the stage once its tasksets are stored; waits briefly, enough for small files."""
        key = key_of(request.key)
        plan = plan_of(request.plan_json)
        needed = needed_tasksets(plan)
        async with self.database.transaction() as connection:
            known = await stage_tasksets(connection, key)
        missing = [taskset for taskset in needed if taskset.name not in known]

        async def look() -> TasksetLook:
            found = await self.library.resolve(key.tenant, key.experiment_id, missing)
            stored = [*known.values(), *found.stored]
            found.awaited.extend(await self.features.awaited(key.tenant, needed, stored))
            return TasksetLook(found)

        resolved = await self.poller.poll(tasksets_topic(key.tenant), READ_SECONDS, look)
        if resolved.awaited:
            reason = "; ".join(resolved.awaited)
            return Opened(state=Opened.STATE_READING, reason=reason)
        # Not earlier: it restarts the process of users' functions, and waiting clients call often.
        await self._check_parts(plan)
        tasksets = [
            *(known[taskset.name] for taskset in needed if taskset.name in known),
            *resolved.stored,
        ]
        async with self.database.transaction() as connection:
            stage = await open_stage(connection, key, request.plan_json, request.seed, tasksets)
        return Opened(
            state=Opened.STATE_OPEN,
            num_tasks=stage.num_rows,
            total_train_steps=stage.total_train_steps,
            total_explore_steps=stage.total_explore_steps,
        )

    async def _check_parts(self, plan: StagePlan) -> None:
        """Checks that all functions of the pipeline can be loaded before any rollout."""
        try:
            await self.functions.load(Chain.of(plan).steps)
        except FunctionFailed as error:
            raise PreconditionFailed(str(error)) from error
        if plan.replay is not None and plan.needs_rollout:
            await self._check_priority(plan.replay)

    async def _check_priority(self, replay: ResolvedReplay) -> None:
        try:
            await self.priorities.load(replay.priority_fn, replay.priority_fn_args)
        except PriorityFailed as error:
            raise PreconditionFailed(f"priority_fn {replay.priority_fn}: {error}") from error

    async def CancelStage(
        self, request: pb.CancelStageRequest, _: Context
    ) -> pb.CancelStageResponse:
        """Ends a stage early; one that has already ended stays as it is."""
        reason = sentence_of(request.reason) or "cancelled without a reason"
        async with self.database.transaction() as connection:
            stage = await lock_stage(connection, key_of(request.key))
            if not stage.is_open:
                return pb.CancelStageResponse(num_revoked=0)
            num_revoked = await end_stage(connection, stage, StageState.CANCELLED, reason)
        return pb.CancelStageResponse(num_revoked=num_revoked)

    async def GetBufferStatus(
        self, request: pb.GetBufferStatusRequest, _: Context
    ) -> pb.GetBufferStatusResponse:
        """Describes all unfinished stages."""
        experiment = request.experiment_id
        wanted = uuid_of(experiment, "experiment_id") if experiment else ""
        tenant = name_of(request.tenant, "tenant") if request.tenant else ""
        num_pending = await self._num_stream_pending()
        async with self.database.transaction() as connection:
            stages = await list_unfinished(connection, tenant, wanted)
            return pb.GetBufferStatusResponse(
                stages=[await _describe(connection, stage, num_pending) for stage in stages]
            )

    async def _num_stream_pending(self) -> int:
        """Returns the pending messages, with a timeout: a hung broker must not hide other state."""
        try:
            async with asyncio.timeout(BROKER_SECONDS):
                return await self.stream.num_pending()
        except (Unavailable, TimeoutError):
            return UNKNOWN


async def _describe(
    connection: AsyncConnection, stage: Stage, num_stream_pending: int
) -> pb.StageStatus:
    counts = await count_open(connection, stage.key)
    now, lost = await pace(connection, stage), await losses(connection, stage)
    refills = await count_refills(connection, stage.key, stage.explore_step)
    return pb.StageStatus(
        key=stage_key_to_proto(stage.key),
        explore_step=stage.explore_step,
        trained_step=stage.trained_step,
        num_pending=counts.get(AssignmentState.PENDING, 0),
        num_leased=counts.get(AssignmentState.LEASED, 0),
        num_ready=await count_state(connection, stage.key, ExperienceState.READY),
        num_dead_letters=await count_dead_letters(connection, subject_of(stage.key)),
        num_stream_pending=num_stream_pending,
        total_train_steps=stage.total_train_steps,
        step_age_seconds=now.age_seconds,
        step_seconds=now.usual_seconds,
        num_recent_runs=lost.num_runs,
        num_recent_lost=lost.num_lost,
        recent_loss=lost.reason,
        refill_round=refills.num_rounds,
        num_refill_tasks=refills.num_tasks,
        replay=await _replay(connection, stage),
        task_pipelines=[
            pb.TaskPipelineStatus(
                taskset=pipeline.taskset,
                num_rows=pipeline.num_rows,
                counts=pipeline_to_proto(pipeline.counts),
            )
            for pipeline in await stage_pipelines(connection, stage.key)
        ],
    )


async def _replay(connection: AsyncConnection, stage: Stage) -> pb.ReplayStatus | None:
    if stage.plan.replay is None:
        return None
    counts = await count_replayed(connection, stage)
    return pb.ReplayStatus(
        num_trained=counts.num_trained,
        num_replayed=counts.num_replayed,
        max_uses=counts.max_uses,
        num_waiting=counts.num_waiting,
        num_dropped=int(await sum_metric(connection, stage, NUM_DROPPED)),
    )
