"""Weight sync on request, for stages whose versions are not tied to step numbers."""

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.composition import VersionWanted
from services.buffer.domain.stage import Stage
from services.buffer.handlers.evaluating import open_evaluations
from services.buffer.store.database import batch_topic, notify
from services.buffer.store.stages import update_stage


async def ask_for_version(connection: AsyncConnection, stage: Stage) -> None:
    """Asks the trainer to publish its current weights, before its next step at the latest."""
    await update_stage(connection, stage.key, wants_version=True)
    await notify(connection, batch_topic(stage.key))


def wanted_version(stage: Stage) -> VersionWanted | None:
    """Returns VersionWanted if the trainer, done with all batches, must publish; else None."""
    is_known = stage.published is not None and stage.recorded_step <= stage.published
    if not stage.wants_version or is_known:
        return None
    return VersionWanted(f"explorers wait for weights version {stage.recorded_step}")


async def evaluate_between(connection: AsyncConnection, stage: Stage) -> None:
    """Opens evaluations of the next step's weights after an interval's last explore step."""
    done = stage.explore_step - 1
    if stage.plan.is_driven and done and done % stage.plan.eval_interval == 0:
        await open_evaluations(connection, stage, stage.step_version)
