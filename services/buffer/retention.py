"""Removes contents that are no longer needed: partitions are first retired, then dropped."""

import logging

from services.buffer.handlers.retaining import BatchedSegments, retire_contents
from services.buffer.store.database import RETENTION_TOPIC, Database
from services.buffer.store.retention import stages_with_old_segments
from services.buffer.store.segments import (
    let_others_remove,
    remove_retired,
    try_to_remove_alone,
)
from trinity.errors import PreconditionFailed, Unavailable
from trinity.limited_log import LimitedLog
from trinity.notifications import Listener
from trinity.types import StageKey

logger = logging.getLogger(__name__)
limited_log = LimitedLog(logger)

LOOK_SECONDS = 60.0
"""Interval without notifications; checkpoints and ends of stages notify."""


async def keep_contents_few(database: Database, listener: Listener) -> None:
    """Removes contents after each checkpoint and stage, and periodically, until cancelled."""
    batched = BatchedSegments()
    with listener.subscribe(RETENTION_TOPIC) as changes:
        while True:
            try:
                await retain_once(database, batched)
            except Unavailable as error:
                logger.warning("old contents stay for now", extra={"why": str(error)})
            await changes.wait(LOOK_SECONDS)


async def retain_once(database: Database, batched: BatchedSegments) -> None:
    """Retires unneeded contents of each stage independently, then drops what is retired."""
    async with database.transaction() as connection:
        keys = await stages_with_old_segments(connection)
    for key in keys:
        try:
            await _retain(database, key, batched)
        except (Unavailable, PreconditionFailed) as error:
            about = {"tenant": key.tenant, "experiment": key.experiment_id, "stage": key.stage}
            limited_log.warning("old contents of a stage stay for now", about, why=str(error))
    await _remove(database)


async def _retain(database: Database, key: StageKey, batched: BatchedSegments) -> None:
    """Retires the unneeded contents of a stage.

    Raises: Unavailable; PreconditionFailed when it cannot be determined what is needed.
    """
    async with database.transaction() as connection:
        retired = await retire_contents(connection, key, batched)
    if retired.num_segments:
        extra = {"stage": key.stage, "rows": retired.num_rows, "bytes": retired.num_bytes}
        logger.info("old contents are retired", extra=extra)


async def _remove(database: Database) -> None:
    """Drops retired contents, unless another replica is already doing so."""
    async with database.autocommit() as connection:
        if not await try_to_remove_alone(connection):
            return
        try:
            await remove_retired(connection)
        finally:
            await let_others_remove(connection)
