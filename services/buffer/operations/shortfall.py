"""The work and the refills that may complete a batch that is short of rows."""

from dataclasses import replace

from services.buffer.domain.admission import can_open_after
from services.buffer.domain.batches import (
    BatchDecision,
    BatchEnd,
    BatchSupply,
    BatchWait,
    CloseExploreStep,
    ComposeNow,
    RefillTasks,
    tasks_to_draw,
)
from services.buffer.domain.stage import (
    AssignmentKind,
    Stage,
    StageState,
    planned_rows,
    refilled_explore_step,
)
from services.buffer.operations.batch_sources import version_for_refill
from services.buffer.operations.evaluation import end_stage, open_evaluations
from services.buffer.operations.leasing import describe_rollouts, draw_assignments, wait_for_scopes
from services.buffer.store.assignments import count_refills
from services.buffer.store.database import notify, stage_topics, work_topic
from services.buffer.store.experiences import has_batched
from services.buffer.store.pipeline import count_held, count_unfinished_scopes
from services.buffer.store.reports import log_notice
from services.buffer.store.runs import most_common_failure, oldest_open_work
from services.buffer.store.stages import run_losses, update_stage
from trinity.runtime.sql import Connection


async def handle_shortfall(
    connection: Connection, stage: Stage, step: int, decision: BatchDecision, num_rows: int
) -> BatchWait | BatchEnd:
    """Acts on a decision against composing a batch now."""
    match decision:
        case RefillTasks(num_tasks, refill_round):
            number = refilled_explore_step(stage, step)
            drawn = await _refill(connection, stage, number, num_tasks, refill_round)
            reason = f"explore step {number}: {drawn} further tasks drawn"
            return BatchWait(reason, num_rows, planned_rows(stage, step))
        case CloseExploreStep():
            return await _close_explore_step(connection, stage)
        case BatchEnd("failed", reason):
            reason += await _why_short(connection, stage)
            await end_stage(connection, stage, StageState.FAILED, reason)
            return BatchEnd("failed", reason)
        case BatchWait():
            return replace(decision, num_rows=num_rows, num_wanted=planned_rows(stage, step))
        case BatchEnd():
            return decision
        case ComposeNow():
            raise AssertionError("a batch that can be taken is not gone without")


async def load_supply(
    connection: Connection, stage: Stage, step: int, num_rows: int
) -> BatchSupply:
    """Returns the rows that are ready for a step's batch, and the work that may add more."""
    num_rounds = (await count_refills(connection, stage.key, stage.explore_step)).num_rounds
    is_refilled = num_rounds >= stage.plan.config.buffer.max_refill_rounds
    return BatchSupply(
        num_rows=num_rows,
        unfinished=await wait_for_unfinished(connection, stage),
        next_step_wait=why_not_begun(stage, step),
        refill_rounds=num_rounds,
        has_trained=is_refilled and await has_batched(connection, stage.key, stage.explore_step),
    )


async def _close_explore_step(connection: Connection, stage: Stage) -> BatchWait:
    """Drops the train steps that the newest explore step was to fill, so that the next one opens.

    The weights that this one needs exist already, and are evaluated now if an interval ends.
    """
    number, recorded, plan = stage.explore_step, stage.recorded_step, stage.plan
    planned = number * plan.rows_per_explore_step // plan.num_fresh_rows
    dropped = max(0, planned - stage.num_unfilled - recorded)
    is_last = number == stage.total_explore_steps
    total = recorded if is_last else max(recorded, stage.total_train_steps - dropped)
    num_unfilled = stage.num_unfilled + dropped
    await update_stage(connection, stage.key, num_unfilled=num_unfilled, total_train_steps=total)
    stage = replace(stage, num_unfilled=num_unfilled, total_train_steps=total)
    version = stage.required_version(number + 1)
    if not is_last and stage.is_evaluated(version):
        await open_evaluations(connection, stage, version)
    reason = (
        f"the rows that were left of explore step {number} fill fewer train steps than planned: "
        f"there are {total} in all"
    )
    await log_notice(connection, stage.key, reason)
    await notify(connection, *stage_topics(stage.key))
    return BatchWait(reason, look_again_seconds=0.0)


async def wait_for_unfinished(connection: Connection, stage: Stage) -> BatchWait | None:
    """Returns the wait for the oldest work that may still give rows; None if there is none."""
    [work] = await oldest_open_work(connection, stage.key, AssignmentKind.TRAIN)
    if work:
        return BatchWait(describe_rollouts(work))
    if scopes := await count_unfinished_scopes(connection, stage.key):
        num_awaited = await count_held(connection, stage.key)
        return wait_for_scopes(*scopes, num_awaited)
    return None


def why_not_begun(stage: Stage, step: int) -> str:
    """Returns why the next explore step has not started, if steps before `step` suffice for it."""
    if not can_open_after(stage, step - 1):
        return ""
    number = stage.explore_step + 1
    needed = 0 if stage.plan.has_dynamic_sync else stage.required_version(number)
    if stage.published is None or needed > stage.published:
        return f"explore step {number} needs weights version {needed}, which is not published yet"
    return f"no explorer has asked for explore step {number} yet"


async def _why_short(connection: Connection, stage: Stage) -> str:
    """Returns why rows are missing, as a clause to append to the reason."""
    filtered = "" if stage.num_stale else (await run_losses(connection, stage)).reason
    failure = filtered or await most_common_failure(connection, stage.key)
    why = f"; most often: {failure}" if failure else ""
    if stage.num_stale:
        why += f"; {stage.num_stale} were left out as too old (`max_staleness`)"
    return why


async def wait_until_whole(connection: Connection, stage: Stage, step: int) -> BatchWait:
    """Returns what explore step `step` waits for, or the one before it that is not done either."""
    unfinished = await wait_for_unfinished(connection, stage)
    if unfinished is not None:
        return unfinished
    if stage.explore_step >= step:
        return BatchWait("")
    return BatchWait(why_not_begun(stage, step) or f"explore step {step} has not begun")


async def _refill(
    connection: Connection, stage: Stage, explore_step: int, num_missing: int, refill_round: int
) -> int:
    """Draws tasks for an explore step to make up for missing ones; returns how many."""
    num_tasks = num_missing
    if not stage.num_stale:  # else rows were lost to age, which fresh ones are not
        lost = await run_losses(connection, stage)
        num_tasks = tasks_to_draw(num_missing, num_runs=lost.num_runs, num_lost=lost.num_lost)
    refills = await count_refills(connection, stage.key, explore_step)
    await draw_assignments(
        connection,
        stage,
        num_tasks,
        explore_step=explore_step,
        first_position=refills.next_position,
        refill_round=refill_round,
        required_version=version_for_refill(stage, explore_step),
    )
    await notify(connection, work_topic(stage.key))
    return num_tasks
