"""Makes a stage known, with tasksets that are already stored."""

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
from trinity.task_operators.task_pipeline import ResolvedTaskPipeline
from trinity.types import StageKey

MAX_STEPS = 10**12
"""More than anybody can train, and few enough to be counted with."""
STEPPED = (TasksetKind.TRAIN, TasksetKind.DATA)
"""What gives a stage its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededTaskset:
    """A taskset that a plan takes from."""

    name: str
    kind: TasksetKind
    path: str | None
    """None for tasks that a client submits under the name."""
    split: str
    subset_name: str | None
    table: str | None = None
    """Of a database."""
    is_queue: bool = False
    feature_keys: tuple[str, ...] = ()
    pipeline: ResolvedTaskPipeline | None = None
    """What is done to its rows before any of them is drawn."""


def needed_tasksets(plan: StagePlan) -> list[NeededTaskset]:
    """All tasksets of a plan; in mode train the one with the data."""
    if plan.stored_batches is not None or plan.stored_rollouts is not None:
        return []
    if not plan.needs_rollout:
        return [_needed(plan.experience_buffer, TasksetKind.DATA)]
    experts = [plan.expert_buffer] if plan.expert_buffer else []
    return [
        *(_needed(one, TasksetKind.TRAIN) for one in plan.tasksets),
        *(_needed(one, TasksetKind.EVAL) for one in plan.eval_tasksets),
        *(_needed(one, TasksetKind.EXPERT) for one in experts),
    ]


def _needed(one: ResolvedTaskset | ResolvedExperienceBuffer, kind: TasksetKind) -> NeededTaskset:
    return NeededTaskset(
        name=one.name,
        kind=kind,
        path=one.path,
        split=one.split,
        subset_name=one.subset_name,
        table=one.table,
        is_queue=kind is TasksetKind.TRAIN and one.storage_type == "queue",
        feature_keys=() if kind is TasksetKind.EVAL else one.selector.feature_keys,
        pipeline=one.task_pipeline,
    )


async def open_stage(
    connection: AsyncConnection,
    key: StageKey,
    plan_json: str,
    seed: int,
    tasksets: Sequence[StageTaskset],
) -> Stage:
    """Enter the stage, or change the plan of a known one; its tasksets stay those it began with.

    A stage that failed or was cancelled goes on.

    Raises: InvalidRequest when plan and data give more steps than can be counted;
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
        names = ", ".join(one.name for one in tasksets if one.kind in STEPPED)
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
    """Those that the stage has already stay as they are."""
    rows = [
        {
            **key_columns(key),
            "name": one.name,
            "taskset_id": one.taskset_id,
            "kind": one.kind,
            "num_rows": one.num_rows,
        }
        for one in tasksets
    ]
    await insert_rows(connection, stage_taskset, rows, ignore_existing=True)
    for taskset, selector in _selected(plan, tasksets):
        await prepare_selector(connection, key, taskset, selector)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """What there is to work on, and how much work it makes."""

    num_rows: int
    total_train_steps: int
    total_explore_steps: int


async def _size_of(
    connection: AsyncConnection, key: StageKey, plan: StagePlan, tasksets: Sequence[StageTaskset]
) -> _Size:
    num_stored = 0
    if plan.stored_rollouts is not None and plan.stored_batches is None:
        num_stored = await count_explored(connection, await get_stage(connection, key))
    num_rows = sum(one.num_rows for one in tasksets if one.kind in STEPPED) + num_stored
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
    """What a stage has that was not known before."""
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
    """Somebody may delete a taskset between the look for it and now."""
    there = await hold_tasksets(connection, tenant, [one.taskset_id for one in tasksets])
    for one in tasksets:
        if one.taskset_id not in there:
            raise PreconditionFailed(f"taskset {one.name} was deleted at this moment: start again")


def _selected(
    plan: StagePlan, tasksets: Sequence[StageTaskset]
) -> Iterator[tuple[StageTaskset, Selector]]:
    """Tasksets that rows are drawn from, with the selectors that draw them."""
    selectors = {one.name: one.selector for one in plan.tasksets}
    for buffer in (plan.experience_buffer, *plan.auxiliary_buffers):
        selectors[buffer.name] = buffer.selector
    for one in tasksets:
        if one.kind is not TasksetKind.EVAL and one.name in selectors:
            yield one, selectors[one.name]


async def _log_opened(connection: AsyncConnection, stage: Stage) -> None:
    event = StageOpened(
        total_train_steps=stage.total_train_steps,
        total_explore_steps=stage.total_explore_steps,
        num_tasks=stage.num_rows,
    )
    await log_event(connection, stage.key, event)
