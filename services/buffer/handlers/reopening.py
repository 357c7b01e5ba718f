"""Reopens a stage that failed or was cancelled."""

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.events import Notice
from services.buffer.domain.stage import Stage, first_unbatched_step
from services.buffer.domain.states import AssignmentKind, StageState
from services.buffer.store.progress import log_event
from services.buffer.store.reopening import (
    find_cancelled,
    find_lost,
    forget_refills,
    reopen_assignments,
    reopen_evaluations,
    reopen_left_out_scopes,
)
from services.buffer.store.stages import update_stage

ENDINGS = {StageState.FAILED: "had failed", StageState.CANCELLED: "was cancelled"}


async def reopen_stage(connection: AsyncConnection, stage: Stage) -> None:
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
    await log_event(connection, stage.key, Notice(text=text))


async def _reopen_training(connection: AsyncConnection, stage: Stage) -> None:
    """Reopens lost tasks, but only up to the planned number: refills replaced some of them."""
    key = stage.key
    await forget_refills(connection, key, stage.explore_step)
    cancelled = await find_cancelled(connection, key, AssignmentKind.TRAIN)
    first_step = first_unbatched_step(stage)
    lost = await find_lost(connection, key, first_step)
    num_planned = (stage.explore_step - first_step + 1) * stage.plan.config.buffer.batch_size
    num_alive = lost.num_drawn - len(lost.unshaped) - len(lost.given_up)
    num_wanted = max(0, num_planned - num_alive)
    unshaped = lost.unshaped[:num_wanted]
    given_up = lost.given_up[: num_wanted - len(unshaped)]
    await reopen_left_out_scopes(connection, key, unshaped)
    await reopen_assignments(connection, key, [*cancelled, *given_up])
