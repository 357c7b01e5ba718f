"""Periodic maintenance: deletes obsolete records, ends overdue waits."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.handlers.cutting import cut_stragglers
from services.buffer.handlers.feedback import end_overdue
from services.buffer.store.abandoned import lock_abandoned
from services.buffer.store.catalogue import delete_taskset
from services.buffer.store.database import Database
from services.buffer.store.reports import forget_blobs, forget_reports
from services.buffer.store.stages import list_readable
from trinity.errors import PreconditionFailed, Unavailable
from trinity.types import StageKey

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 600.0
STRAGGLER_SECONDS = 1.0
"""Interval of checks for explore steps that have enough."""
FEEDBACK_SECONDS = 5.0
"""Interval of checks for overdue samples."""


async def keep_small(database: Database) -> None:
    """Cleans up periodically, until cancelled."""
    while True:
        await clear_once(database)
        await asyncio.sleep(PAUSE_SECONDS)


async def clear_once(database: Database) -> None:
    """Cleans up each kind independently, so that a failure of one does not stop the others."""
    for clear in (_forget_reports, _forget_blobs, delete_abandoned):
        try:
            await clear(database)
        except Unavailable as error:
            logger.warning("what is old stays for now", extra={"why": str(error)})


async def _forget_reports(database: Database) -> None:
    async with database.autocommit() as connection:
        await forget_reports(connection)


async def _forget_blobs(database: Database) -> None:
    async with database.autocommit() as connection:
        await forget_blobs(connection)


async def delete_abandoned(database: Database) -> None:
    """Deletes unreferenced tasksets, one per transaction, because each may have many rows."""
    while True:
        async with database.transaction() as connection:
            found = await lock_abandoned(connection)
            if found is None:
                return
            await delete_taskset(connection, found.tenant, found.taskset_id)
        extra = {"tenant": found.tenant, "taskset": found.name}
        logger.info("an unreferenced taskset is deleted", extra=extra)


async def end_waits_for_feedback(database: Database) -> None:
    """Leaves out samples whose rewards are overdue, until cancelled."""

    def waits(stage: Stage) -> bool:
        return bool(stage.plan.config.buffer.feedback_timeout)

    while True:
        await _in_each_stage(database, waits, end_overdue, "overdue feedback is waited for")
        await asyncio.sleep(FEEDBACK_SECONDS)


async def end_waits_for_stragglers(database: Database) -> None:
    """Leaves behind stragglers that explore steps need not wait for, until cancelled."""

    def waits(stage: Stage) -> bool:
        return stage.plan.needs_rollout and bool(stage.plan.num_spare_tasks)

    while True:
        await _in_each_stage(database, waits, cut_stragglers, "slow tasks are waited for")
        await asyncio.sleep(STRAGGLER_SECONDS)


async def _in_each_stage(
    database: Database,
    concerns: Callable[[Stage], bool],
    act: Callable[[AsyncConnection, StageKey], Awaitable[object]],
    otherwise: str,
) -> None:
    """Acts on each open stage that `concerns` selects; a failure does not stop the others."""
    try:
        async with database.transaction() as connection:
            stages = await list_readable(connection)
    except Unavailable as error:
        logger.warning(otherwise, extra={"why": str(error)})
        return
    for stage in filter(concerns, stages):
        try:
            async with database.transaction() as connection:
                await act(connection, stage.key)
        except (Unavailable, PreconditionFailed) as error:  # a plan may become unreadable
            logger.warning(otherwise, extra={"stage": stage.key.stage, "why": str(error)})
