"""Versions that come when somebody asks or has one: what follows where no step's number says so."""

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.composition import VersionWanted
from services.buffer.domain.stage import Stage
from services.buffer.handlers.evaluating import open_evaluations
from services.buffer.store.database import batch_topic, notify
from services.buffer.store.stages import update_stage


async def ask_for_version(connection: AsyncConnection, stage: Stage) -> None:
    """Have the trainer publish what it has, before its next step at the latest."""
    await update_stage(connection, stage.key, wants_version=True)
    await notify(connection, batch_topic(stage.key))


def wanted_version(stage: Stage) -> VersionWanted | None:
    """That the trainer, which has trained every recorded batch, is to publish first."""
    is_known = stage.published is not None and stage.recorded_step <= stage.published
    if not stage.wants_version or is_known:
        return None
    return VersionWanted(f"explorers wait for weights version {stage.recorded_step}")


async def evaluate_between(connection: AsyncConnection, stage: Stage) -> None:
    """After an interval's last explore step the weights of the next one are measured."""
    done = stage.explore_step - 1
    if stage.plan.is_driven and done and done % stage.plan.eval_interval == 0:
        await open_evaluations(connection, stage, stage.step_version)
