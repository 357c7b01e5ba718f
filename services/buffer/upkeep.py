"""Forgets what nobody will ask for any more."""

import asyncio
import logging
from datetime import timedelta

from services.buffer.store.database import Database
from services.buffer.store.reports import forget_old
from trinity.errors import Unavailable

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 3600.0
KEPT = timedelta(days=1)


async def keep_small(database: Database) -> None:
    """Clear up every hour, until cancelled."""
    while True:
        try:
            async with database.transaction() as connection:
                await forget_old(connection, KEPT)
        except Unavailable as error:
            logger.warning("old reports stay for now", extra={"why": str(error)})
        await asyncio.sleep(PAUSE_SECONDS)
