"""Opens a stage, or reopens one that failed or was cancelled."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from services.buffer.domain.stage import (
    AssignmentKind,
    Stage,
    StageState,
    TasksetKind,
    first_unbatched_step,
    parse_plan,
    refilled_explore_step,
)
from services.buffer.domain.tasks import (
    NeededTaskset,
    SettingChange,
    SettingsChanged,
    StageOpened,
)
from services.buffer.operations.explore_steps import (
    begin_exploring,
    prepare_selector,
)
from services.buffer.operations.retrain import find_source, wanted_checkpoints
from services.buffer.store.database import insert_rows, key_columns, notify, stage_topics
from services.buffer.store.ready_rows import count_taken
from services.buffer.store.reports import MAX_LISTED_CHANGES, log_event, log_notice
from services.buffer.store.schema import stage_taskset
from services.buffer.store.segments import open_segment
from services.buffer.store.stages import (
    StageTaskset,
    find_stage,
    get_stage,
    insert_stage,
    lock_stage,
    stage_tasksets,
    update_stage,
)
from services.buffer.store.stragglers import (
    find_cancelled,
    find_lost_work,
    reopen_assignments,
    reopen_evaluations,
    reopen_left_out_scopes,
    reset_refills,
)
from services.buffer.store.tasksets import SKIPPED, hold_tasksets, stage_pipelines
from services.buffer.store.training import kept_checkpoints
from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.changes.plans import stage_changes
from trinity.config.changes.rules import ChangeKind
from trinity.config.plan.parts import (
    ResolvedExperienceBuffer,
    ResolvedSelector,
    ResolvedTaskset,
    StoredRollouts,
)
from trinity.config.plan.sizes import row_shortage_error
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.stored_rollouts import check_stored_advantages
from trinity.config.training_rows import RowCheck
from trinity.errors import InvalidRequest, PreconditionFailed, UserError
from trinity.runtime.sql import Connection
from trinity.types import StageKey

ENDINGS = {StageState.FAILED: "had failed", StageState.CANCELLED: "was cancelled"}
MAX_STEPS = 10**12
"""More steps than can be trained, but few enough to compute with."""
STEP_KINDS = (TasksetKind.TRAIN, TasksetKind.DATA)
"""Kinds of tasksets whose rows determine the number of steps."""


async def reopen_stage(connection: Connection, stage: Stage) -> None:
    """Resumes the work where it stopped; the caller holds the stage's lock.

    Lost work is retried, because a person may have fixed the cause. No lease is granted until the
    trainer has published weights.
    """
    await update_stage(connection, stage.key, state=StageState.OPEN, reason="", published=None)
    evaluated = await reopen_evaluations(connection, stage.key)
    await reopen_assignments(connection, stage.key, evaluated)
    if stage.plan.needs_rollout and stage.finished_step is None:
        await _reopen_training(connection, stage)
    text = f"stage {stage.key.stage} goes on; it {ENDINGS[stage.state]}: {stage.reason}"
    await log_notice(connection, stage.key, text)


async def _reopen_training(connection: Connection, stage: Stage) -> None:
    """Reopens lost tasks, but only up to the planned number: refills replaced some of them."""
    key = stage.key
    refilled = refilled_explore_step(stage, stage.recorded_step + 1)
    await reset_refills(connection, key, refilled)
    cancelled = await find_cancelled(connection, key, AssignmentKind.TRAIN)
    first_step = first_unbatched_step(stage)
    lost = await find_lost_work(connection, key, first_step)
    num_planned = (stage.explore_step - first_step + 1) * stage.plan.config.buffer.batch_size
    num_alive = lost.num_drawn - len(lost.failed_groups) - len(lost.given_up)
    num_wanted = max(0, num_planned - num_alive)
    failed_groups = lost.failed_groups[:num_wanted]
    given_up = lost.given_up[: num_wanted - len(failed_groups)]
    await reopen_left_out_scopes(connection, key, failed_groups)
    await reopen_assignments(connection, key, [*cancelled, *given_up])


async def extend_stage(connection: Connection, stage: Stage) -> None:
    """Goes on with a stage that had finished its steps, as its plan has more of them now."""
    key = stage.key
    changes: dict[str, str | int | None] = {"reason": "", "published": None, "finished_step": None}
    await update_stage(connection, key, state=StageState.OPEN, **changes)
    if stage.plan.needs_rollout:
        await _reopen_training(connection, stage)
    text = f"stage {key.stage} goes on: its plan has more steps than it had finished with"
    await log_notice(connection, key, text)


async def _log_changes(connection: Connection, before: Stage, now: Stage) -> None:
    """Records settings that change results from a step on; batches that are recorded stay."""
    # Another path for one counts as the same: other rows come under another name.
    changes = stage_changes(before.plan, now.plan, lambda _before, _now: True)
    told = [change for change in changes if change.is_recorded]
    if not told:
        return
    checkpoints = await kept_checkpoints(connection, now)
    first = {
        "training": 1 + (checkpoints[0].step if checkpoints else 0),
        "rollout": 1 + now.recorded_step,
    }
    event = SettingsChanged(
        changes=[
            SettingChange(
                key=change.key,
                before=change.before,
                now=change.now,
                from_step=first[change.holds_from],
                only_rounds=change.kind is ChangeKind.FREE,
            )
            for change in told[:MAX_LISTED_CHANGES]
        ],
        num_left_out=max(0, len(told) - MAX_LISTED_CHANGES),
    )
    await log_event(connection, now.key, event)


def _is_longer(before: Stage, now: Stage) -> bool:
    """Returns true if the new plan has more steps with the same data."""
    rows, old, new = now.num_rows, before.plan, now.plan
    if new.num_train_steps(rows) > old.num_train_steps(rows):
        return True
    return new.needs_rollout and new.num_explore_steps(rows) > old.num_explore_steps(rows)


async def count_explored(connection: Connection, stage: Stage) -> int:
    """Returns the number of rows for a stage that trains on stored experiences.

    Their stage is locked, so that their contents cannot be removed before this transaction ends.

    Raises: PreconditionFailed when they are missing, too few for a batch, or have other advantages.
    """
    stored = _stored(stage)
    _check_ended(stage, await find_stage(connection, stage.samples_key), stored)
    source = await lock_stage(connection, stage.samples_key)
    try:
        check_stored_advantages(stage.plan, source.plan, stored)
    except UserError as error:
        raise PreconditionFailed(str(error)) from error
    num_rows, num_gone = await count_taken(connection, source.key)
    _check_enough(stage, source, num_rows, num_gone)
    return num_rows


def _stored(stage: Stage) -> StoredRollouts:
    assert stage.plan.stored_rollouts is not None, "the stage trains on stored experiences"
    return stage.plan.stored_rollouts


def _check_ended(stage: Stage, source: Stage | None, stored: StoredRollouts) -> None:
    """Checks that the source is finished; a stage of another run may have been stopped instead."""
    what = f"stage {stage.key.stage} trains on what {stored.description} has stored"
    if not stored.run:
        if source is None or source.state is not StageState.FINISHED:
            raise PreconditionFailed(f"{what}, which is not finished")
    elif source is None:
        raise PreconditionFailed(
            f"{what}, and there is no such stage here: name one with "
            "`experience_buffer.source_run` and `source_stage`"
        )
    elif source.is_open:
        raise PreconditionFailed(
            f"{what}, which is still running: let it finish, or stop it gracefully, and start again"
        )


def _check_enough(stage: Stage, source: Stage, num_rows: int, num_gone: int) -> None:
    size = stage.plan.train_batch_size
    if num_rows >= size:
        return
    removed = f" with contents (those of {num_gone} more were removed, {_kept(source)})"
    raise PreconditionFailed(
        f"{_stored(stage).description} has stored {num_rows} experiences"
        f"{removed if num_gone else ''}, a batch of stage {stage.key.stage} takes {size}: "
        "explore more steps, or lower `buffer.train_batch_size`"
    )


async def log_source_rows(connection: Connection, stage: Stage) -> None:
    """Logs the number of rows taken from another run, and of those whose contents are gone."""
    stored = stage.plan.stored_rollouts
    if stored is None or not stored.run or stage.plan.stored_batches is not None:
        return
    source = await get_stage(connection, stage.samples_key)
    num_rows, num_gone = await count_taken(connection, source.key)
    text = f"trains on {num_rows:,} experiences of {stored.description}"
    if num_gone:
        text += f"; the contents of {num_gone:,} further ones were removed there ({_kept(source)})"
    await log_notice(connection, stage.key, text)


def _kept(source: Stage) -> str:
    return f"`buffer.keep_steps: {source.plan.config.buffer.keep_steps}`"


def needed_tasksets(plan: StagePlan) -> list[NeededTaskset]:
    """Returns all tasksets of a plan; in mode train only the one with the data."""
    if plan.stored_batches is not None or plan.stored_rollouts is not None:
        return []
    if not plan.needs_rollout:
        schema = plan.algorithm.row_schema
        return [_needed(plan.experience_buffer, TasksetKind.DATA, schema)]
    experts = [plan.expert_buffer] if plan.expert_buffer else []
    return [
        *(_needed(taskset, TasksetKind.TRAIN) for taskset in plan.tasksets),
        *(_needed(taskset, TasksetKind.EVAL) for taskset in plan.eval_tasksets),
        *(_needed(taskset, TasksetKind.EXPERT, "sft") for taskset in experts),
    ]


def _needed(
    taskset: ResolvedTaskset | ResolvedExperienceBuffer,
    kind: TasksetKind,
    schema: RowSchema | None = None,
) -> NeededTaskset:
    return NeededTaskset(
        name=taskset.name,
        kind=kind,
        path=taskset.path,
        split=taskset.split,
        subset_name=taskset.subset_name,
        table=taskset.table,
        is_queue=kind is TasksetKind.TRAIN and taskset.storage_type == "queue",
        is_of_clients=isinstance(taskset, ResolvedTaskset) and taskset.is_of_clients,
        feature_keys=() if kind is TasksetKind.EVAL else taskset.selector.feature_keys,
        pipeline=taskset.task_pipeline,
        row_check=_row_check(taskset, schema) if schema else None,
        image_key=taskset.format.image_key,
    )


def _row_check(
    buffer: ResolvedTaskset | ResolvedExperienceBuffer, schema: RowSchema
) -> RowCheck | None:
    """Returns the check of rows of data; those of a pipeline are checked when they are trained."""
    assert isinstance(buffer, ResolvedExperienceBuffer)
    if buffer.task_pipeline is not None:
        return None
    skips = buffer.on_bad_row == "skip"
    return RowCheck(form=buffer.format, row_schema=schema, skips=skips)


async def open_stage(
    connection: Connection,
    key: StageKey,
    plan_json: str,
    seed: int,
    tasksets: Sequence[StageTaskset],
) -> Stage:
    """Creates the stage, or updates the plan of an existing one, whose tasksets stay the same.

    A stage that failed or was cancelled is reopened, and one that has finished if its plan has more
    steps now. Changes that affect results are recorded with the step from which they apply.

    Raises: InvalidRequest when plan and data give more than `MAX_STEPS` steps;
    PreconditionFailed when they give no step.
    """
    plan = parse_plan(plan_json)
    is_new = await insert_stage(connection, key, plan=plan_json, seed=seed, segment_id=0)
    before = await lock_stage(connection, key)
    if is_new:
        await _lock_tasksets(connection, key.tenant, tasksets)
    await _insert_tasksets(connection, key, plan, tasksets)
    tasksets = await _kept_tasksets(connection, key, tasksets)
    size = await _size_of(connection, before, plan, tasksets)
    if max(size.total_train_steps, size.total_explore_steps) > MAX_STEPS:
        raise InvalidRequest(f"plan_json: it gives more than {MAX_STEPS} steps with these data")
    if tasksets and (reason := row_shortage_error(plan, size.num_rows)):
        names = ", ".join(taskset.name for taskset in tasksets if taskset.kind in STEP_KINDS)
        raise PreconditionFailed(f"stage {key.stage}, taskset {names}: its {reason}")
    await update_stage(connection, key, plan=plan_json, seed=seed, **asdict(size))
    stage = await get_stage(connection, key)
    if is_new:
        await _initialise(connection, stage)
        await _report_skipped_rows(connection, key)
    else:
        await _go_on(connection, before, stage)
    if not plan.needs_training:
        await begin_exploring(connection, await get_stage(connection, key))
    await notify(connection, *stage_topics(key))
    return await get_stage(connection, key)


async def _go_on(connection: Connection, before: Stage, stage: Stage) -> None:
    """Goes on with a known stage by its new plan."""
    await _log_changes(connection, before, stage)
    if is_longer := _is_longer(before, stage):
        await _log_opened(connection, stage)
    is_finished = stage.state is StageState.FINISHED or stage.finished_step is not None
    if stage.state in ENDINGS:
        await reopen_stage(connection, stage)
        stage = await get_stage(connection, stage.key)
    if is_longer and is_finished:
        await extend_stage(connection, replace(stage, finished_step=None))


async def _report_skipped_rows(connection: Connection, key: StageKey) -> None:
    """Logs how many rows of data are left out, with the first of them."""
    for pipeline in await stage_pipelines(connection, key):
        for reason, count in pipeline.counts.left_out.items():
            if reason.startswith(SKIPPED):
                of = f"{count:,} of {pipeline.counts.num_read:,} rows"
                text = f"{of} of {pipeline.taskset} are left out: {reason}"
                await log_notice(connection, key, text)


async def _insert_tasksets(
    connection: Connection, key: StageKey, plan: StagePlan, tasksets: Sequence[StageTaskset]
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


async def _kept_tasksets(
    connection: Connection, key: StageKey, tasksets: Sequence[StageTaskset]
) -> list[StageTaskset]:
    """Returns the tasksets of the stage as it was opened, not versions that were read later."""
    kept = await stage_tasksets(connection, key)
    return [
        taskset if kept[taskset.name].taskset_id == taskset.taskset_id else kept[taskset.name]
        for taskset in tasksets
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """Number of rows, and of the steps they make."""

    num_rows: int
    total_train_steps: int
    total_explore_steps: int


async def _size_of(
    connection: Connection, before: Stage, plan: StagePlan, tasksets: Sequence[StageTaskset]
) -> _Size:
    key, num_stored = before.key, 0
    if plan.stored_rollouts is not None and plan.stored_batches is None:
        num_stored = await count_explored(connection, await get_stage(connection, key))
    own_rows = [taskset.num_rows for taskset in tasksets if taskset.kind in STEP_KINDS]
    num_rows = sum(own_rows, num_stored)
    total_train_steps = plan.num_train_steps(num_rows)
    if before.num_unfilled:
        total_train_steps = max(before.recorded_step, total_train_steps - before.num_unfilled)
    if num_stored:  # no row is used more often than `buffer.total_epochs`
        most = plan.config.buffer.total_epochs * num_stored // plan.train_batch_size
        total_train_steps = min(total_train_steps, most)
    if plan.stored_batches is not None:
        source = await find_source(connection, key.tenant, plan.stored_batches)
        num_rows, total_train_steps = source.num_rows, source.total_train_steps
    return _Size(
        num_rows=num_rows,
        total_train_steps=total_train_steps,
        total_explore_steps=plan.num_explore_steps(num_rows) if plan.needs_rollout else 0,
    )


async def _initialise(connection: Connection, stage: Stage) -> None:
    """Initialises a new stage."""
    key, plan = stage.key, stage.plan
    await update_stage(connection, key, segment_id=await open_segment(connection, key))
    if plan.stored_batches is not None:
        before = plan.stored_batches.first_step - 1
        await update_stage(connection, key, recorded_step=before, trained_step=before)
    if plan.benched is not None:
        newest = (await wanted_checkpoints(connection, stage))[0].step
        await update_stage(connection, key, recorded_step=newest, trained_step=newest)
    await _log_opened(connection, stage)
    await log_source_rows(connection, stage)


async def _lock_tasksets(
    connection: Connection, tenant: str, tasksets: Sequence[StageTaskset]
) -> None:
    """Locks the tasksets, because a client may have deleted one after it was looked up."""
    held = await hold_tasksets(connection, tenant, [taskset.taskset_id for taskset in tasksets])
    for taskset in tasksets:
        if taskset.taskset_id not in held:
            raise PreconditionFailed(
                f"taskset {taskset.name} was deleted at this moment: start again"
            )


def _selected(
    plan: StagePlan, tasksets: Sequence[StageTaskset]
) -> Iterator[tuple[StageTaskset, ResolvedSelector]]:
    """Yields tasksets that rows are drawn from, with their selectors."""
    selectors = {taskset.name: taskset.selector for taskset in plan.tasksets}
    for buffer in (plan.experience_buffer, *plan.auxiliary_buffers):
        selectors[buffer.name] = buffer.selector
    for taskset in tasksets:
        if taskset.kind is not TasksetKind.EVAL and taskset.name in selectors:
            yield taskset, selectors[taskset.name]


async def _log_opened(connection: Connection, stage: Stage) -> None:
    event = StageOpened(
        total_train_steps=stage.total_train_steps,
        total_explore_steps=stage.total_explore_steps,
        num_tasks=stage.num_rows,
    )
    await log_event(connection, stage.key, event)
