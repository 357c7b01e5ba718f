"""Stages without a trainer: their weights, their end, and the rows that other stages train on."""

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.events import Notice
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import ExperienceState, StageState
from services.buffer.handlers.evaluating import open_evaluations
from services.buffer.store.database import RETENTION_TOPIC, notify, stage_topics
from services.buffer.store.evaluations import open_versions
from services.buffer.store.experiences import count_state
from services.buffer.store.progress import log_event
from services.buffer.store.ready_rows import ReadyRow
from services.buffer.store.stages import update_stage
from services.buffer.store.stored_rollouts import least_used
from services.buffer.store.training import Version, insert_version
from services.buffer.store.unfinished import first_unfinished
from trinity.config.plan import StagePlan

STARTING_WEIGHTS = Version(version=0, incarnation=0, weights_sha256=b"")
"""The initial weights, which no trainer publishes: explorers already have them."""


async def begin_exploring(connection: AsyncConnection, stage: Stage) -> None:
    """Records the initial weights as published, so that work can be leased."""
    await insert_version(connection, stage, STARTING_WEIGHTS)
    await update_stage(connection, stage.key, published=STARTING_WEIGHTS.version)
    if stage.is_evaluated(STARTING_WEIGHTS.version):
        await open_evaluations(connection, stage, STARTING_WEIGHTS.version)


async def say_how_far(connection: AsyncConnection, stage: Stage) -> None:
    """Logs about ten notices of progress, because no train step reports any."""
    step, total = stage.explore_step, stage.total_explore_steps
    if not stage.plan.needs_training and 10 * step // total > 10 * (step - 1) // total:
        await log_event(
            connection, stage.key, Notice(text=f"explore step {step} of {total} begins")
        )


async def finish_if_explored(connection: AsyncConnection, stage: Stage) -> bool:
    """Ends a stage without a trainer when all of its tasks are done; returns whether they are."""
    unfinished = (
        stage.explore_step < stage.total_explore_steps
        or await first_unfinished(connection, stage.key)
        or await open_versions(connection, stage.key)
    )
    if unfinished:
        return False
    await update_stage(connection, stage.key, state=StageState.FINISHED)
    num_rows = await count_state(connection, stage.key, ExperienceState.READY)
    text = f"{stage.explore_step} explore steps are done, {num_rows} experiences are stored"
    await log_event(connection, stage.key, Notice(text=text))
    await notify(connection, *stage_topics(stage.key), RETENTION_TOPIC)
    return True


def steps_of_explored(plan: StagePlan, num_rows: int) -> int:
    """Returns the most train steps that use no row more often than `buffer.total_epochs`."""
    return plan.config.buffer.total_epochs * num_rows // plan.train_batch_size


async def explored_rows(connection: AsyncConnection, stage: Stage) -> list[ReadyRow]:
    """Returns the rows of the next batch: the least used ones first."""
    return await least_used(connection, stage, stage.plan.train_batch_size)
