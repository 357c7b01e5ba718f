"""RPC methods for stages: open, cancel, status; checks of incoming plans."""

import asyncio
from collections.abc import Iterator, Sequence

from pydantic import ValidationError

from services.buffer.domain.operators import FunctionChain
from services.buffer.domain.stage import (
    AssignmentState,
    ExperienceState,
    Stage,
    StageState,
    parse_plan,
)
from services.buffer.ingest.wire import subject_of
from services.buffer.operations.batch_sources import NUM_DROPPED
from services.buffer.operations.evaluation import end_stage
from services.buffer.operations.stages import MAX_STEPS, needed_tasksets, open_stage
from services.buffer.servicer.common import BufferServicerBase, Context, Look
from services.buffer.servicer.convert import (
    clean_reason,
    parse_name,
    parse_stage_key,
    parse_text,
    parse_uuid,
    pipeline_to_proto,
    to_message,
)
from services.buffer.store.assignments import count_open, count_refills
from services.buffer.store.batches import sum_metric
from services.buffer.store.database import tasksets_topic
from services.buffer.store.ready_rows import count_state
from services.buffer.store.replay import count_replayed
from services.buffer.store.reports import count_dead_letters, load_changes, newest_dead_letter
from services.buffer.store.stages import (
    list_unfinished,
    lock_stage,
    pace,
    run_losses,
    stage_tasksets,
)
from services.buffer.store.tasksets import stage_pipelines
from services.buffer.tasksets.library import ResolvedTasksets
from services.buffer.workers.functions import FunctionFailed
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.data import ANCHORS
from trinity.config.plan.parts import ResolvedTaskset
from trinity.config.plan.stage_plan import StagePlan
from trinity.data.codec import stage_key_to_proto
from trinity.errors import InvalidRequest, PreconditionFailed, TooLarge, Unavailable, UserError
from trinity.runtime.json_values import holds_null
from trinity.runtime.rpc.answers import fair_within, first_within
from trinity.runtime.sql import Connection

MAX_PLAN_LENGTH = 1024 * 1024
MAX_PATH_BYTES = 1_000
"""The identity of a taskset's files is part of an index."""
MAX_ROWS = 1_000_000
"""Most rows of one explore step or one batch, which are built in one piece."""
MAX_TIMES = 10_000
"""Most runs of a task, and most attempts at a run."""
Opened = pb.OpenStageResponse
READ_SECONDS = 5.0
"""Time that a call waits for tasksets that are being read or awaited."""
BROKER_SECONDS = 1.0
UNKNOWN = -1
PIPELINES_BYTES = 256 * 1024
"""Limit for what task pipelines left out in one stage of many."""


def parse_and_check_plan(text: str) -> StagePlan:
    """Parses and validates a plan.

    Raises: InvalidRequest, TooLarge.
    """
    if len(text) > MAX_PLAN_LENGTH:
        raise TooLarge(f"plan_json has more than {MAX_PLAN_LENGTH} characters")
    plan = _parse(text)
    _check_sampling(plan)
    _check_tasksets(plan)
    _check_train_step(plan)
    for name, number, least, most in _numbers(plan):
        if not least <= number <= most:
            raise InvalidRequest(f"plan_json: {name} is {number}, which is not in {least}..{most}")
    return plan


def _parse(text: str) -> StagePlan:
    if holds_null(text):
        raise InvalidRequest("plan_json holds a null character")
    try:
        return parse_plan(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"plan_json is not a stage's plan: {where}: {first['msg']}") from error


def _check_sampling(plan: StagePlan) -> None:
    try:
        sampling = plan.algorithm.sampling
    except (UserError, TypeError) as error:
        raise InvalidRequest(f"plan_json: sample_strategy: {error}") from error
    if sampling.expert_buffer is not None and plan.expert_buffer is None:
        raise InvalidRequest(f"plan_json: auxiliary_buffers lacks {sampling.expert_buffer!r}")


def _check_tasksets(plan: StagePlan) -> None:
    if plan.mode == "bench" and plan.needs_training and plan.benched is None:
        raise InvalidRequest(
            "plan_json: mode bench without a run whose checkpoints are evaluated: start it with "
            "`trinity run` in that run's directory"
        )
    brings_tasks = plan.mode != "bench" and plan.stored_rollouts is None
    if (plan.has_rollouts and brings_tasks) != bool(plan.tasksets):
        raise InvalidRequest("plan_json: a stage has a taskset exactly when it has an explorer")
    names = [taskset.name for taskset in needed_tasksets(plan)]
    if len(set(names)) < len(names):
        raise InvalidRequest("plan_json: two tasksets have the same name")
    for taskset in plan.tasksets:
        _check_selector(taskset, len(plan.tasksets))
    for needed in needed_tasksets(plan):
        parse_name(needed.name, "plan_json: the name of a taskset")
        for part in (needed.path or "", needed.split, needed.subset_name or ""):
            if len(parse_text(part, "plan_json: the path of a taskset").encode()) > MAX_PATH_BYTES:
                raise InvalidRequest(
                    f"plan_json: the path of taskset {needed.name} has more than "
                    f"{MAX_PATH_BYTES} bytes"
                )


def _check_train_step(plan: StagePlan) -> None:
    if plan.trains_explore_steps and (plan.replay is not None or plan.num_expert_rows):
        raise InvalidRequest(
            "plan_json: train_step explore_step cannot be combined with a replay buffer or expert "
            "rows"
        )


def _check_selector(taskset: ResolvedTaskset, num_tasksets: int) -> None:
    """Repeats checks of the configuration: a client may have written the plan itself."""
    selector = taskset.selector
    learns = selector.selector_type == "difficulty_based"
    num_keys = len(selector.feature_keys)
    if learns != (selector.difficulty is not None) or (learns and num_keys != ANCHORS):
        raise InvalidRequest(
            f"plan_json: taskset {taskset.name}: difficulty_based needs its arguments and "
            "two features"
        )
    if selector.selector_type == "offline_easy2hard" and not num_keys:
        raise InvalidRequest(f"plan_json: taskset {taskset.name}: offline_easy2hard needs features")
    if taskset.storage_type == "queue" and num_tasksets > 1:
        raise InvalidRequest(f"plan_json: taskset {taskset.name}: a queue stands alone")
    for key in selector.feature_keys:
        parse_name(key, f"plan_json: a feature of taskset {taskset.name}")


def _numbers(plan: StagePlan) -> Iterator[tuple[str, int, int, int]]:
    """Yields counts that the buffer works with, each with its allowed minimum and maximum."""
    buffer, sync = plan.config.buffer, plan.config.synchronizer
    yield "train_batch_size", plan.train_batch_size, 1, MAX_ROWS
    has_experts = plan.expert_buffer is not None
    yield "num_expert_rows", plan.num_expert_rows, int(has_experts), MAX_ROWS * has_experts
    yield "num_rollout_rows", plan.num_rollout_rows, 1, MAX_ROWS
    yield "rows_per_explore_step", plan.rows_per_explore_step, int(bool(plan.tasksets)), MAX_ROWS
    yield "buffer.batch_size", buffer.batch_size, 1, MAX_ROWS
    yield "buffer.max_refill_rounds", buffer.max_refill_rounds, 0, MAX_TIMES
    yield "buffer.total_epochs", buffer.total_epochs, 1, MAX_STEPS
    yield "algorithm.repeat_times", plan.algorithm.repeat_times, 1, MAX_TIMES
    yield "explorer.max_retry_times", plan.config.explorer.max_retry_times, 0, MAX_TIMES
    yield "synchronizer.sync_interval", sync.sync_interval, 1, MAX_STEPS
    yield "synchronizer.sync_offset", sync.sync_offset, 0, MAX_STEPS
    yield "total_explore_steps", plan.total_explore_steps or 0, 0, MAX_STEPS
    yield "total_train_steps", plan.total_train_steps or 0, 0, MAX_STEPS
    if plan.replay is not None:
        yield "replay.capacity", plan.replay.capacity, plan.num_rollout_rows, MAX_ROWS
        yield "replay.cooldown_steps", plan.replay.cooldown_steps or 1, 1, MAX_STEPS
    for taskset in plan.eval_tasksets:
        yield f"repeat_times of {taskset.name}", taskset.repeat_times, 1, MAX_TIMES


class StageRpcs(BufferServicerBase):
    """OpenStage, CancelStage, GetBufferStatus."""

    async def OpenStage(self, request: pb.OpenStageRequest, _: Context) -> pb.OpenStageResponse:
        """Opens the stage once its tasksets are stored; waits briefly, enough for small files."""
        key = parse_stage_key(request.key)
        plan = parse_and_check_plan(request.plan_json)
        needed = needed_tasksets(plan)
        async with self.database.transaction() as connection:
            known = await stage_tasksets(connection, key)
        missing = [taskset for taskset in needed if taskset.name not in known]

        async def look() -> Look[ResolvedTasksets]:
            found = await self.library.resolve(key.tenant, key.experiment_id, missing)
            stored = [*known.values(), *found.stored]
            found.awaited.extend(await self.features.awaited(key.tenant, needed, stored))
            return Look(found, is_final=not found.awaited)

        resolved = await self.poller.poll_until_final(
            tasksets_topic(key.tenant), READ_SECONDS, look
        )
        if resolved.awaited:
            reason = clean_reason("; ".join(resolved.awaited))
            return Opened(state=Opened.STATE_READING, reason=reason)
        # Not earlier: it restarts the process of users' functions, and waiting clients call often.
        await self._check_parts(key.tenant, plan)
        tasksets = [
            *(known[taskset.name] for taskset in needed if taskset.name in known),
            *resolved.stored,
        ]
        async with self.database.transaction() as connection:
            stage = await open_stage(connection, key, request.plan_json, request.seed, tasksets)
        return Opened(
            state=Opened.STATE_OPEN,
            num_tasks=stage.num_rows,
            total_train_steps=stage.total_train_steps + stage.num_unfilled,
            total_explore_steps=stage.total_explore_steps,
        )

    async def _check_parts(self, tenant: str, plan: StagePlan) -> None:
        """Checks that all functions of the pipeline can be loaded before any rollout."""
        try:
            await self.functions.load_functions(tenant, FunctionChain.from_plan(plan).functions)
        except FunctionFailed as error:
            raise PreconditionFailed(str(error)) from error
        await self.sinks.check_places(tenant, plan)
        if (replay := plan.replay) is None or not plan.needs_rollout:
            return
        name, arguments = replay.priority_fn, replay.priority_fn_args
        try:
            await self.priorities.load_priority(tenant, name, arguments)
        except FunctionFailed as error:
            raise PreconditionFailed(f"priority_fn {name}: {error}") from error

    async def CancelStage(
        self, request: pb.CancelStageRequest, _: Context
    ) -> pb.CancelStageResponse:
        """Ends a stage early; one that has already ended stays as it is."""
        reason = clean_reason(request.reason) or "cancelled without a reason"
        async with self.database.transaction() as connection:
            stage = await lock_stage(connection, parse_stage_key(request.key))
            if not stage.is_open:
                return pb.CancelStageResponse(num_revoked=0)
            num_revoked = await end_stage(connection, stage, StageState.CANCELLED, reason)
        return pb.CancelStageResponse(num_revoked=num_revoked)

    async def GetBufferStatus(
        self, request: pb.GetBufferStatusRequest, _: Context
    ) -> pb.GetBufferStatusResponse:
        """Describes all unfinished stages."""
        experiment = request.experiment_id
        wanted = parse_uuid(experiment, "experiment_id") if experiment else ""
        tenant = parse_name(request.tenant, "tenant") if request.tenant else ""
        num_pending = await self._num_stream_pending()
        async with self.database.transaction() as connection:
            stages = await list_unfinished(connection, tenant, wanted)
            return status_response(
                [await _describe(connection, stage, num_pending) for stage in stages]
            )

    async def _num_stream_pending(self) -> int:
        """Returns the pending messages, with a timeout: a hung broker must not hide other state."""
        try:
            async with asyncio.timeout(BROKER_SECONDS):
                return await self.stream.num_pending()
        except (Unavailable, TimeoutError):
            return UNKNOWN


def status_response(stages: Sequence[pb.StageStatus]) -> pb.GetBufferStatusResponse:
    """Returns the stages, or of each tenant as many as of others."""
    listed = fair_within(stages, lambda stage: stage.key.tenant)
    return pb.GetBufferStatusResponse(stages=listed, num_stages_left_out=len(stages) - len(listed))


async def _describe(
    connection: Connection, stage: Stage, num_stream_pending: int
) -> pb.StageStatus:
    counts = await count_open(connection, stage.key)
    now, lost = await pace(connection, stage), await run_losses(connection, stage)
    refills = await count_refills(connection, stage.key, stage.explore_step)
    subject = subject_of(stage.key)
    pipelines = [
        to_message(pb.TaskPipelineStatus, pipeline, counts=pipeline_to_proto(pipeline.counts))
        for pipeline in await stage_pipelines(connection, stage.key)
    ]
    told = first_within(pipelines, PIPELINES_BYTES)
    return pb.StageStatus(
        key=stage_key_to_proto(stage.key),
        explore_step=stage.explore_step,
        trained_step=stage.trained_step,
        num_pending=counts.get(AssignmentState.PENDING, 0),
        num_leased=counts.get(AssignmentState.LEASED, 0),
        num_ready=await count_state(connection, stage.key, ExperienceState.READY),
        num_dead_letters=await count_dead_letters(connection, subject),
        dead_letter_reason=await newest_dead_letter(connection, subject),
        num_stream_pending=num_stream_pending,
        total_train_steps=stage.total_train_steps,
        step_age_seconds=now.age_seconds,
        step_seconds=now.usual_seconds,
        idle_share=now.idle_share,
        num_recent_runs=lost.num_runs,
        num_recent_lost=lost.num_lost,
        recent_loss=lost.reason,
        refill_round=refills.num_rounds,
        num_refill_tasks=refills.num_tasks,
        replay=await _replay(connection, stage),
        task_pipelines=told,
        num_task_pipelines_left_out=len(pipelines) - len(told),
        changes=[
            to_message(pb.SettingChange, change)
            for change in await load_changes(connection, stage.key)
        ],
    )


async def _replay(connection: Connection, stage: Stage) -> pb.ReplayStatus | None:
    if stage.plan.replay is None:
        return None
    num_dropped = int(await sum_metric(connection, stage, NUM_DROPPED))
    counts = await count_replayed(connection, stage)
    return to_message(pb.ReplayStatus, counts, num_dropped=num_dropped)
