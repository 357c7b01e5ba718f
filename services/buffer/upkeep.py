"""Forgets what nobody will ask for any more."""

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
"""How late it may be noticed that an explore step has enough."""
FEEDBACK_SECONDS = 5.0
"""How late an overdue sample may be noticed."""


async def keep_small(database: Database) -> None:
    """Clear up now and then, until cancelled."""
    while True:
        await clear_once(database)
        await asyncio.sleep(PAUSE_SECONDS)


async def clear_once(database: Database) -> None:
    """Clear up, each kind for itself: what one of them lacks the others need not wait for."""
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
    """Delete tasksets that nobody refers to; one a transaction, as each may have many rows."""
    while True:
        async with database.transaction() as connection:
            found = await lock_abandoned(connection)
            if found is None:
                return
            await delete_taskset(connection, found.tenant, found.taskset_id)
        extra = {"tenant": found.tenant, "taskset": found.name}
        logger.info("a taskset that nobody refers to is deleted", extra=extra)


async def end_waits_for_feedback(database: Database) -> None:
    """Leave out samples whose rewards are overdue, until cancelled."""

    def waits(stage: Stage) -> bool:
        return bool(stage.plan.config.buffer.feedback_timeout)

    while True:
        await _in_each_stage(database, waits, end_overdue, "overdue feedback is waited for")
        await asyncio.sleep(FEEDBACK_SECONDS)


async def end_waits_for_stragglers(database: Database) -> None:
    """Leave behind what explore steps need not wait for, until cancelled."""

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
    """Act in every open stage that it concerns, each for itself: one cannot hold up the others."""
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
        except (Unavailable, PreconditionFailed) as error:  # also who reads its plan may change
            logger.warning(otherwise, extra={"stage": stage.key.stage, "why": str(error)})
