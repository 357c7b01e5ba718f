"""Opens a stage, with tasksets that are already stored."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.events import StageOpened
from services.buffer.domain.stage import Stage, parse_plan
from services.buffer.domain.states import StageState, TasksetKind
from services.buffer.handlers.benching import newest_benched
from services.buffer.handlers.explored import begin_exploring, steps_of_explored
from services.buffer.handlers.ranking import prepare_selector
from services.buffer.handlers.reopening import reopen_stage
from services.buffer.handlers.retraining import find_source
from services.buffer.handlers.sourcing import count_explored, say_what_is_taken
from services.buffer.needed_types import NeededTaskset
from services.buffer.store.database import insert_rows, key_columns, notify, stage_topics
from services.buffer.store.progress import log_event
from services.buffer.store.segments import open_segment
from services.buffer.store.stages import (
    StageTaskset,
    get_stage,
    insert_stage,
    lock_stage,
    update_stage,
)
from services.buffer.store.tables import stage_taskset
from services.buffer.store.tasks import hold_tasksets
from trinity.config.plan import StagePlan
from trinity.config.plan_parts import ResolvedExperienceBuffer, ResolvedTaskset, Selector
from trinity.config.too_few_rows import too_few_rows
from trinity.errors import InvalidRequest, PreconditionFailed
from trinity.types import StageKey

MAX_STEPS = 10**12
"""More steps than can be trained, but few enough to compute with."""
STEPPED = (TasksetKind.TRAIN, TasksetKind.DATA)
"""Kinds of tasksets whose rows determine the number of steps."""


def needed_tasksets(plan: StagePlan) -> list[NeededTaskset]:
    """Returns all tasksets of a plan; in mode train only the one with the data."""
    if plan.stored_batches is not None or plan.stored_rollouts is not None:
        return []
    if not plan.needs_rollout:
        return [_needed(plan.experience_buffer, TasksetKind.DATA)]
    experts = [plan.expert_buffer] if plan.expert_buffer else []
    return [
        *(_needed(taskset, TasksetKind.TRAIN) for taskset in plan.tasksets),
        *(_needed(taskset, TasksetKind.EVAL) for taskset in plan.eval_tasksets),
        *(_needed(taskset, TasksetKind.EXPERT) for taskset in experts),
    ]


def _needed(
    taskset: ResolvedTaskset | ResolvedExperienceBuffer, kind: TasksetKind
) -> NeededTaskset:
    return NeededTaskset(
        name=taskset.name,
        kind=kind,
        path=taskset.path,
        split=taskset.split,
        subset_name=taskset.subset_name,
        table=taskset.table,
        is_queue=kind is TasksetKind.TRAIN and taskset.storage_type == "queue",
        feature_keys=() if kind is TasksetKind.EVAL else taskset.selector.feature_keys,
        pipeline=taskset.task_pipeline,
    )


async def open_stage(
    connection: AsyncConnection,
    key: StageKey,
    plan_json: str,
    seed: int,
    tasksets: Sequence[StageTaskset],
) -> Stage:
    """Creates the stage, or updates the plan of an existing one, whose tasksets stay the same.

    A stage that failed or was cancelled is reopened.

    Raises: InvalidRequest when plan and data give more than `MAX_STEPS` steps;
    PreconditionFailed when they give none.
    """
    plan = parse_plan(plan_json)
    is_new = await insert_stage(connection, key, plan=plan_json, seed=seed, segment_id=0)
    await lock_stage(connection, key)
    if is_new:
        await _hold(connection, key.tenant, tasksets)
    await _take_tasksets(connection, key, plan, tasksets)
    size = await _size_of(connection, key, plan, tasksets)
    if max(size.total_train_steps, size.total_explore_steps) > MAX_STEPS:
        raise InvalidRequest(f"plan_json: it gives more than {MAX_STEPS} steps with these data")
    if tasksets and (reason := too_few_rows(plan, size.num_rows)):
        names = ", ".join(taskset.name for taskset in tasksets if taskset.kind in STEPPED)
        raise PreconditionFailed(f"stage {key.stage}, taskset {names}: its {reason}")
    await update_stage(connection, key, plan=plan_json, **asdict(size))
    stage = await get_stage(connection, key)
    if is_new:
        await _begin(connection, stage)
    elif stage.state in (StageState.FAILED, StageState.CANCELLED):
        await reopen_stage(connection, stage)
    if not plan.needs_training:
        await begin_exploring(connection, await get_stage(connection, key))
    await notify(connection, *stage_topics(key))
    return await get_stage(connection, key)


async def _take_tasksets(
    connection: AsyncConnection, key: StageKey, plan: StagePlan, tasksets: Sequence[StageTaskset]
) -> None:
    """Stores the tasksets of the stage; existing ones stay as they are."""
    rows = [
        {
            **key_columns(key),
            "name": taskset.name,
            "taskset_id": taskset.taskset_id,
            "kind": taskset.kind,
            "num_rows": taskset.num_rows,
        }
        for taskset in tasksets
    ]
    await insert_rows(connection, stage_taskset, rows, ignore_existing=True)
    for taskset, selector in _selected(plan, tasksets):
        await prepare_selector(connection, key, taskset, selector)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """Number of rows, and of the steps they make."""

    num_rows: int
    total_train_steps: int
    total_explore_steps: int


async def _size_of(
    connection: AsyncConnection, key: StageKey, plan: StagePlan, tasksets: Sequence[StageTaskset]
) -> _Size:
    num_stored = 0
    if plan.stored_rollouts is not None and plan.stored_batches is None:
        num_stored = await count_explored(connection, await get_stage(connection, key))
    num_rows = sum(taskset.num_rows for taskset in tasksets if taskset.kind in STEPPED) + num_stored
    total_train_steps = plan.num_train_steps(num_rows)
    if num_stored:
        total_train_steps = min(total_train_steps, steps_of_explored(plan, num_stored))
    if plan.stored_batches is not None:
        source = await find_source(connection, key.tenant, plan.stored_batches)
        num_rows, total_train_steps = source.num_rows, source.total_train_steps
    return _Size(
        num_rows=num_rows,
        total_train_steps=total_train_steps,
        total_explore_steps=plan.num_explore_steps(num_rows) if plan.needs_rollout else 0,
    )


async def _begin(connection: AsyncConnection, stage: Stage) -> None:
    """Initialises a new stage."""
    key, plan = stage.key, stage.plan
    await update_stage(connection, key, segment_id=await open_segment(connection, key))
    if plan.stored_batches is not None:
        before = plan.stored_batches.first_step - 1
        await update_stage(connection, key, recorded_step=before, trained_step=before)
    if plan.benched is not None:
        newest = await newest_benched(connection, stage)
        await update_stage(connection, key, recorded_step=newest, trained_step=newest)
    await _log_opened(connection, stage)
    await say_what_is_taken(connection, stage)


async def _hold(connection: AsyncConnection, tenant: str, tasksets: Sequence[StageTaskset]) -> None:
    """Locks the tasksets, because a client may have deleted one after it was looked up."""
    held = await hold_tasksets(connection, tenant, [taskset.taskset_id for taskset in tasksets])
    for taskset in tasksets:
        if taskset.taskset_id not in held:
            raise PreconditionFailed(
                f"taskset {taskset.name} was deleted at this moment: start again"
            )


def _selected(
    plan: StagePlan, tasksets: Sequence[StageTaskset]
) -> Iterator[tuple[StageTaskset, Selector]]:
    """Yields tasksets that rows are drawn from, with their selectors."""
    selectors = {taskset.name: taskset.selector for taskset in plan.tasksets}
    for buffer in (plan.experience_buffer, *plan.auxiliary_buffers):
        selectors[buffer.name] = buffer.selector
    for taskset in tasksets:
        if taskset.kind is not TasksetKind.EVAL and taskset.name in selectors:
            yield taskset, selectors[taskset.name]


async def _log_opened(connection: AsyncConnection, stage: Stage) -> None:
    event = StageOpened(
        total_train_steps=stage.total_train_steps,
        total_explore_steps=stage.total_explore_steps,
        num_tasks=stage.num_rows,
    )
    await log_event(connection, stage.key, event)
