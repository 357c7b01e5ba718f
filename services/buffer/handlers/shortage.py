"""Handles a batch that lacks rows: draws more tasks, waits with a reason, or ends the stage."""

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.admission import can_open_after
from services.buffer.domain.composition import (
    Decision,
    End,
    Refill,
    Supply,
    Take,
    Wait,
    tasks_to_draw,
)
from services.buffer.domain.stage import Stage, planned_rows
from services.buffer.domain.states import AssignmentKind, StageState
from services.buffer.handlers.ending import end_stage
from services.buffer.handlers.leasing import draw_assignments
from services.buffer.handlers.sampling import version_for_refill
from services.buffer.handlers.words import describe_rollouts, describe_scopes
from services.buffer.store.assignments import count_refills
from services.buffer.store.database import notify, work_topic
from services.buffer.store.feedback import count_held
from services.buffer.store.pace import losses
from services.buffer.store.runs import commonest_failure, oldest_open_work
from services.buffer.store.scopes import count_unfinished_scopes


async def go_without(
    connection: AsyncConnection, stage: Stage, step: int, decision: Decision, num_rows: int
) -> Wait | End:
    """Acts on a decision against composing a batch now."""
    match decision:
        case Refill(num_tasks, refill_round):
            drawn = await _refill(connection, stage, num_tasks, refill_round)
            reason = f"explore step {stage.explore_step}: {drawn} further tasks drawn"
            return Wait(reason, num_rows, planned_rows(stage, step))
        case End("failed", reason):
            reason += await _why_short(connection, stage)
            await end_stage(connection, stage, StageState.FAILED, reason)
            return End("failed", reason)
        case Wait(reason):
            return Wait(reason, num_rows, planned_rows(stage, step))
        case End():
            return decision
        case Take():
            raise AssertionError("a batch that can be taken is not gone without")


async def supply_of(connection: AsyncConnection, stage: Stage, step: int, num_rows: int) -> Supply:
    """Returns the rows that are ready for a step's batch, and the work that may add more."""
    unfinished = ""
    [work] = await oldest_open_work(connection, stage.key, AssignmentKind.TRAIN)
    if work:
        unfinished = describe_rollouts(work)
    elif scopes := await count_unfinished_scopes(connection, stage.key):
        num_awaited = await count_held(connection, stage.key)
        unfinished = describe_scopes(*scopes, num_awaited)
    return Supply(
        num_rows=num_rows,
        unfinished=unfinished,
        next_step=_next_step(stage, step),
        refill_rounds=(await count_refills(connection, stage.key, stage.explore_step)).num_rounds,
    )


def _next_step(stage: Stage, step: int) -> str:
    """Returns why the next explore step has not begun, if steps before `step` suffice for it."""
    if not can_open_after(stage, step - 1):
        return ""
    number = stage.explore_step + 1
    needed = 0 if stage.plan.is_driven else stage.plan.required_version(number)
    if stage.published is None or needed > stage.published:
        return f"explore step {number} needs weights version {needed}, which is not published yet"
    return f"no explorer has asked for explore step {number} yet"


async def _why_short(connection: AsyncConnection, stage: Stage) -> str:
    """Returns why rows are missing, as a clause to append to the reason."""
    filtered = "" if stage.num_stale else (await losses(connection, stage)).reason
    failure = filtered or await commonest_failure(connection, stage.key)
    why = f"; most often: {failure}" if failure else ""
    if stage.num_stale:
        why += f"; {stage.num_stale} were left out as too old (`max_staleness`)"
    return why


async def _refill(
    connection: AsyncConnection, stage: Stage, num_missing: int, refill_round: int
) -> int:
    """Draws tasks to make up for missing ones; returns how many."""
    num_tasks = num_missing
    if not stage.num_stale:  # else rows were lost to age, which fresh ones are not
        lost = await losses(connection, stage)
        num_tasks = tasks_to_draw(num_missing, num_runs=lost.num_runs, num_lost=lost.num_lost)
    refills = await count_refills(connection, stage.key, stage.explore_step)
    await draw_assignments(
        connection,
        stage,
        num_tasks,
        first_position=refills.next_position,
        refill_round=refill_round,
        required_version=version_for_refill(stage),
    )
    await notify(connection, work_topic(stage.key))
    return num_tasks
