"""Stages that evaluate the checkpoints of another stage."""

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.store.evaluations import done_versions
from services.buffer.store.stages import find_stage
from services.buffer.store.training import Checkpoint, kept_checkpoints
from trinity.errors import PreconditionFailed
from trinity.types import StageKey

STARTING_WEIGHTS = Checkpoint(step=0, incarnation=0, path="", manifest_sha256=b"")
"""The weights that the source stage started from, which need no checkpoint."""


async def benched_checkpoints(connection: AsyncConnection, stage: Stage) -> list[Checkpoint]:
    """Returns the checkpoints still to evaluate, newest first; the newest is always among them.

    Raises: PreconditionFailed when there is no checkpoint at all.
    """
    wanted = await _wanted(connection, stage)
    benched = stage.plan.benched
    assert benched is not None, "the stage evaluates checkpoints"
    known = {*benched.known_versions, *await done_versions(connection, stage.key)}
    return [wanted[0], *(checkpoint for checkpoint in wanted[1:] if checkpoint.step not in known)]


async def _wanted(connection: AsyncConnection, stage: Stage) -> list[Checkpoint]:
    benched, explorer = stage.plan.benched, stage.plan.config.explorer
    assert benched is not None, "the stage evaluates checkpoints"
    key = StageKey(
        tenant=stage.key.tenant, experiment_id=benched.experiment_id, stage=benched.stage
    )
    source = await find_stage(connection, key)
    kept = await kept_checkpoints(connection, source) if source is not None else []
    newest_of_step = {checkpoint.step: checkpoint for checkpoint in reversed(kept)}
    found = [newest_of_step[step] for step in sorted(newest_of_step, reverse=True)]
    if explorer.bench_on_latest_checkpoint:
        found = found[:1]
    elif explorer.eval_on_startup:
        found.append(STARTING_WEIGHTS)
    if not found:
        raise PreconditionFailed(
            f"stage {benched.stage} has no checkpoint to evaluate: train it first, with a "
            "`trainer.save_interval`"
        )
    return found


async def newest_benched(connection: AsyncConnection, stage: Stage) -> int:
    """Returns the newest version that will be evaluated."""
    return (await _wanted(connection, stage))[0].step
