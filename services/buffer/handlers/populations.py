"""Tells whether what is trained on is like what was generated."""

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.population import Population, population_figures
from services.buffer.domain.stage import Stage
from services.buffer.store.population import compared_step, last_settled_step, load_population
from services.buffer.store.stages import update_stage

SHOWN_STEPS = 64
"""Newest explore steps that a person is shown together."""


async def newly_compared(connection: AsyncConnection, stage: Stage) -> dict[str, float]:
    """Figures of the explore steps that were settled since the last time, each counted once.

    The caller holds the stage's lock. Not part of composing a batch: nobody waits for it here.
    """
    if not stage.plan.needs_rollout:
        return {}
    before = await compared_step(connection, stage.key)
    settled = await last_settled_step(connection, stage)
    if settled <= before:
        return {}
    await update_stage(connection, stage.key, compared_step=settled)
    population = await load_population(connection, stage, after=before, up_to=settled)
    return {} if population is None else population_figures(population)


async def newest_population(connection: AsyncConnection, stage: Stage) -> Population | None:
    """Of the newest settled explore steps together."""
    settled = await last_settled_step(connection, stage)
    return await load_population(
        connection, stage, after=max(settled - SHOWN_STEPS, 0), up_to=settled
    )
