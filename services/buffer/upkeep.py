"""Forgets what nobody will ask for any more."""

import asyncio
import logging
from datetime import timedelta

from services.buffer.handlers.feedback import end_overdue
from services.buffer.store.database import Database
from services.buffer.store.reports import forget_old
from services.buffer.store.stages import list_unfinished
from trinity.errors import Unavailable

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 3600.0
KEPT = timedelta(days=1)
FEEDBACK_SECONDS = 5.0
"""How late an overdue sample may be noticed."""


async def keep_small(database: Database) -> None:
    """Clear up every hour, until cancelled."""
    while True:
        try:
            async with database.transaction() as connection:
                await forget_old(connection, KEPT)
        except Unavailable as error:
            logger.warning("old reports stay for now", extra={"why": str(error)})
        await asyncio.sleep(PAUSE_SECONDS)


async def end_waits_for_feedback(database: Database) -> None:
    """Leave out samples whose rewards are overdue, until cancelled."""
    while True:
        try:
            async with database.transaction() as connection:
                stages = await list_unfinished(connection, "", "")
            for stage in stages:
                if stage.plan.config.buffer.feedback_timeout:
                    async with database.transaction() as connection:
                        await end_overdue(connection, stage.key)
        except Unavailable as error:
            logger.warning("overdue feedback is waited for", extra={"why": str(error)})
        await asyncio.sleep(FEEDBACK_SECONDS)
