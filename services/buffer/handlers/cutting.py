"""Straggler cutoff: explore steps that have enough leave their open tasks behind."""

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.events import Notice
from services.buffer.domain.stage import Stage
from services.buffer.domain.stragglers import REASON, StepTasks, has_enough, num_tasks_to_draw
from services.buffer.store.database import SCOPES_TOPIC, notify, stage_topics
from services.buffer.store.feedback import hold_scopes
from services.buffer.store.progress import log_event
from services.buffer.store.scopes import open_scopes
from services.buffer.store.stages import lock_stage
from services.buffer.store.stragglers import (
    count_kept_runs,
    drop,
    leave_behind,
    seconds_since_ended,
    tasks_by_step,
    with_ended_runs,
)
from trinity.types import StageKey


async def cut_stragglers(connection: AsyncConnection, key: StageKey) -> int:
    """Cuts the open tasks of steps that have had enough for `wait_after_min` seconds.

    Returns the number of tasks left behind.
    """
    stage = await lock_stage(connection, key)
    if not stage.is_open:
        return 0
    num_cut = 0
    for tasks in await tasks_by_step(connection, key, only_open=True):
        if has_enough(tasks, stage.plan.num_spare_tasks) and await _is_over(
            connection, stage, tasks
        ):
            num_cut += await _cut(connection, stage, tasks)
    if num_cut:
        await notify(connection, SCOPES_TOPIC, *stage_topics(key))
    return num_cut


async def count_tasks_to_draw(connection: AsyncConnection, stage: Stage) -> int:
    """Returns the number of tasks that the next explore step begins with."""
    if not stage.plan.num_spare_tasks:
        return stage.plan.config.buffer.batch_size
    earlier = await tasks_by_step(connection, stage.key, only_open=False)
    num_kept = await count_kept_runs(connection, stage.key) if _keeps_ended_runs(stage) else 0
    return num_tasks_to_draw(stage, earlier, num_kept)


def _keeps_ended_runs(stage: Stage) -> bool:
    return stage.plan.config.explorer.over_rollout.return_partial_tasks


async def _is_over(connection: AsyncConnection, stage: Stage, tasks: StepTasks) -> bool:
    number = tasks.num_drawn - stage.plan.num_spare_tasks
    waited = await seconds_since_ended(connection, stage.key, tasks.explore_step, number)
    return waited is None or waited >= stage.plan.config.explorer.over_rollout.wait_after_min


async def _cut(connection: AsyncConnection, stage: Stage, tasks: StepTasks) -> int:
    key = stage.key
    cut = await leave_behind(connection, key, tasks.explore_step, REASON)
    kept = await with_ended_runs(connection, key, cut) if _keeps_ended_runs(stage) else []
    await drop(connection, key, [task for task in cut if task.assignment_id not in kept], REASON)
    await open_scopes(connection, key, kept)
    if stage.plan.config.buffer.await_feedback:
        await hold_scopes(connection, key, kept)
    num_cut = len(cut)
    text = (
        f"explore step {tasks.explore_step}: {num_cut} of {tasks.num_drawn} tasks were left "
        f"behind, the others had ended (`explorer.over_rollout`){_of_kept(len(kept))}"
    )
    await log_event(connection, stage.key, Notice(text=text))
    return num_cut


def _of_kept(num_kept: int) -> str:
    return f"; of {num_kept} of them the runs that had ended are trained" if num_kept else ""
