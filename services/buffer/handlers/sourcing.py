"""Stages that train on stored experiences of another stage, possibly of another run."""

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.events import Notice
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import StageState
from services.buffer.store.progress import log_event
from services.buffer.store.stages import find_stage, get_stage, lock_stage
from services.buffer.store.stored_rollouts import count_taken
from trinity.config.plan_parts import StoredRollouts
from trinity.config.stored_rollouts import check_rows
from trinity.errors import PreconditionFailed, UserError


async def count_explored(connection: AsyncConnection, stage: Stage) -> int:
    """Returns the number of rows for a stage that trains on stored experiences.

    Their stage is locked, so that their contents cannot be removed before this transaction ends.

    Raises: PreconditionFailed when they are missing, too few for a batch, or have other advantages.
    """
    stored = _stored(stage)
    _check_ended(stage, await find_stage(connection, stage.samples_key), stored)
    source = await lock_stage(connection, stage.samples_key)
    try:
        check_rows(stage.plan, source.plan, stored)
    except UserError as error:
        raise PreconditionFailed(str(error)) from error
    num_rows, num_gone = await count_taken(connection, source.key)
    _check_enough(stage, source, num_rows, num_gone)
    return num_rows


def _stored(stage: Stage) -> StoredRollouts:
    assert stage.plan.stored_rollouts is not None, "the stage trains on stored experiences"
    return stage.plan.stored_rollouts


def _check_ended(stage: Stage, source: Stage | None, stored: StoredRollouts) -> None:
    """Checks that the source is finished; a stage of another run may have been stopped instead."""
    what = f"stage {stage.key.stage} trains on what {stored.words} has stored"
    if not stored.run:
        if source is None or source.state is not StageState.FINISHED:
            raise PreconditionFailed(f"{what}, which is not finished")
    elif source is None:
        raise PreconditionFailed(
            f"{what}, and there is no such stage here: name one with "
            "`experience_buffer.source_run` and `source_stage`"
        )
    elif source.is_open:
        raise PreconditionFailed(
            f"{what}, which is still running: let it finish, or stop it gracefully, and start again"
        )


def _check_enough(stage: Stage, source: Stage, num_rows: int, num_gone: int) -> None:
    size = stage.plan.train_batch_size
    if num_rows >= size:
        return
    removed = f" with contents (those of {num_gone} more were removed, {_kept(source)})"
    raise PreconditionFailed(
        f"{_stored(stage).words} has stored {num_rows} experiences{removed if num_gone else ''}, a "
        f"batch of stage {stage.key.stage} takes {size}: explore more steps, or lower "
        "`buffer.train_batch_size`"
    )


async def say_what_is_taken(connection: AsyncConnection, stage: Stage) -> None:
    """Logs the number of rows taken from another run, and of those whose contents are gone."""
    stored = stage.plan.stored_rollouts
    if stored is None or not stored.run or stage.plan.stored_batches is not None:
        return
    source = await get_stage(connection, stage.samples_key)
    num_rows, num_gone = await count_taken(connection, source.key)
    text = f"trains on {num_rows:,} experiences of {stored.words}"
    if num_gone:
        text += f"; the contents of {num_gone:,} further ones were removed there ({_kept(source)})"
    await log_event(connection, stage.key, Notice(text=text))


def _kept(source: Stage) -> str:
    return f"`buffer.keep_steps: {source.plan.config.buffer.keep_steps}`"
