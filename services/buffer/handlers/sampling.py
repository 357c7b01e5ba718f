"""Composition of a batch beyond fresh rollouts: adds rows of data, leaves out stale rows."""

import dataclasses

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.events import Notice
from services.buffer.domain.stage import Stage
from services.buffer.handlers.drawing import draw_rows
from services.buffer.store.batches import BatchItem, any_metric_above_zero
from services.buffer.store.database import notify, work_topic
from services.buffer.store.progress import log_event
from services.buffer.store.ready_rows import Place, filter_stale, place_of_fresh
from services.buffer.store.stages import stage_tasksets, update_stage
from trinity.config.plan_parts import ResolvedExperienceBuffer

NUM_STALE = "sample/num_stale_rows"
NUM_EXPERT = "sample/num_expert_rows"


async def draw_data(
    connection: AsyncConnection,
    stage: Stage,
    buffer: ResolvedExperienceBuffer,
    *,
    step: int,
    count: int,
) -> list[BatchItem]:
    """Returns the rows of data that belong to a step: a function of its number alone."""
    taskset = (await stage_tasksets(connection, stage.key))[buffer.name]
    first = (step - 1) * count
    drawn = await draw_rows(
        connection, stage.key, taskset, buffer.selector, stage.seed, first=first, count=count
    )
    return [
        BatchItem(taskset_id=taskset.taskset_id, row_index=row, advantage=0.0, weight=1.0)
        for row in drawn
    ]


async def expert_rows(connection: AsyncConnection, stage: Stage, step: int) -> list[BatchItem]:
    """Returns the rows of data that follow the rollouts in a batch; empty without a mix."""
    buffer = stage.plan.expert_buffer
    if buffer is None:
        return []
    count = stage.plan.num_expert_rows
    return await draw_data(connection, stage, buffer, step=step, count=count)


async def leave_out_stale(
    connection: AsyncConnection, stage: Stage, step: int, before: Place | None
) -> Stage:
    """Leaves out ready rows that are too old for `step`, and counts them for its batch.

    A row that is too old now is too old for every later step. In a stage with fixed order, rows
    after the last row of the batch stay for the next one, so that no count depends on the order of
    arrival; with replay, `before` ensures that.
    """
    oldest = stage.plan.oldest_version(step)
    if oldest == 0 or step > stage.total_train_steps:
        return stage
    last = None
    if stage.is_ordered and stage.plan.replay is None:
        number = stage.plan.num_rollout_rows
        last = await place_of_fresh(connection, stage, number, oldest=oldest, before=before)
    reason = _why_stale(stage, step)
    count = await filter_stale(
        connection, stage, oldest=oldest, before=before, up_to=last, reason=reason
    )
    if not count:
        return stage
    if not stage.num_stale and not await any_metric_above_zero(connection, stage, NUM_STALE):
        text = f"{count} rows are left out: {reason}; all of them are counted in {NUM_STALE}"
        await log_event(connection, stage.key, Notice(text=text))
    stage = dataclasses.replace(stage, num_stale=stage.num_stale + count)
    await update_stage(connection, stage.key, num_stale=stage.num_stale)
    # Rows left out free credit for the next explore step.
    await notify(connection, work_topic(stage.key))
    return stage


def _why_stale(stage: Stage, step: int) -> str:
    most = stage.plan.algorithm.sampling.max_staleness
    return (
        f"made by weights older than version {stage.plan.oldest_version(step)}, the oldest that "
        f"train step {step} takes with `max_staleness: {most}`"
    )


def sampling_figures(stage: Stage) -> dict[str, float]:
    """Returns the number of expert rows in a batch, and of stale rows left out before it."""
    figures = {}
    if stage.plan.num_expert_rows:
        figures[NUM_EXPERT] = float(stage.plan.num_expert_rows)
    if stage.plan.algorithm.sampling.max_staleness is not None:
        figures[NUM_STALE] = float(stage.num_stale)
    return figures


def version_for_refill(stage: Stage) -> int:
    """Returns a weights version for more tasks of an explore step, fresh enough to train on."""
    if stage.plan.is_driven:
        return max(stage.step_version, stage.published or 0)
    required = stage.plan.required_version(stage.explore_step)
    if stage.plan.algorithm.sampling.max_staleness is None:
        return required
    return max(required, stage.version_after(stage.recorded_step))
