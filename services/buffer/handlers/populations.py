"""Compares the distribution of trained samples with that of generated ones."""

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.population import Population, population_figures
from services.buffer.domain.stage import Stage
from services.buffer.store.population import compared_step, last_settled_step, load_population
from services.buffer.store.stages import update_stage

SHOWN_STEPS = 64
"""Number of newest explore steps that are shown to people together."""


async def newly_compared(connection: AsyncConnection, stage: Stage) -> dict[str, float]:
    """Returns metrics of the explore steps settled since the last call, each step once.

    The caller holds the stage's lock. This is kept out of composing a batch, where the trainer
    would wait for it.
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
    """Returns the population of the newest settled explore steps together."""
    settled = await last_settled_step(connection, stage)
    return await load_population(
        connection, stage, after=max(settled - SHOWN_STEPS, 0), up_to=settled
    )
