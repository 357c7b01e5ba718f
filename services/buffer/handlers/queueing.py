"""Stages that draw from a queue: admission by its tasks, and their end once it is closed."""

import dataclasses

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.admission import Refusal
from services.buffer.domain.events import Notice
from services.buffer.domain.stage import Stage
from services.buffer.store.database import notify, stage_topics
from services.buffer.store.progress import log_event
from services.buffer.store.stages import stage_tasksets, update_stage
from services.buffer.store.tasks import Taskset, get_taskset
from trinity.config.steps import train_steps_from


async def queue_of(connection: AsyncConnection, stage: Stage) -> Taskset | None:
    """Returns the current queue of a stage, which has one or none."""
    for taskset in stage.plan.tasksets:
        if taskset.storage_type == "queue":
            stored = (await stage_tasksets(connection, stage.key))[taskset.name]
            return await get_taskset(connection, stage.key.tenant, stored.taskset_id)
    return None


async def lack_of_tasks(connection: AsyncConnection, stage: Stage) -> tuple[Stage, Refusal | None]:
    """Returns a refusal if a queue has too few tasks for the next explore step.

    A closed queue ends the stage with the last step that it has tasks for.
    """
    queue = await queue_of(connection, stage)
    batch_size = stage.plan.config.buffer.batch_size
    if queue is None or stage.num_drawn + batch_size <= queue.num_rows:
        return stage, None
    num_left = queue.num_rows - stage.num_drawn
    if not queue.is_complete:
        return stage, Refusal(
            f"explore step {stage.explore_step + 1} waits until the queue "
            f"{stage.plan.tasksets[0].name} has {batch_size} tasks, it has {num_left}"
        )
    return await _end(connection, stage, num_left), Refusal("the queue is used up", is_final=True)


async def _end(connection: AsyncConnection, stage: Stage, num_left: int) -> Stage:
    plan = stage.plan
    rows = stage.explore_step * plan.rows_per_explore_step
    made = train_steps_from(rows, plan.num_fresh_rows, plan.config.buffer.short_batch)
    total = max(stage.recorded_step, min(stage.total_train_steps, made))
    await update_stage(
        connection,
        stage.key,
        total_explore_steps=stage.explore_step,
        total_train_steps=total,
    )
    text = f"queue {plan.tasksets[0].name} is closed and used up: {total} train steps in all"
    if num_left:
        text += (
            f"; its last {num_left} tasks make no explore step of {plan.config.buffer.batch_size}"
        )
    await log_event(connection, stage.key, Notice(text=text))
    await notify(connection, *stage_topics(stage.key))
    return dataclasses.replace(
        stage, total_explore_steps=stage.explore_step, total_train_steps=total
    )
