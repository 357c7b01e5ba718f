"""Trying again while a service is away, with the wait visible."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from services.explorer.status import Status
from trinity.errors import Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0


async def persist(
    call: Callable[[], Awaitable[T]], *, status: Status, waits_for: str, purpose: str
) -> T:
    """The result of `call`, tried again for as long as it raises Unavailable."""
    pause = FIRST_PAUSE_SECONDS
    name = f"{waits_for}/{purpose}"
    try:
        while True:
            try:
                return await call()
            except Unavailable as error:
                logger.warning("will try again", extra={"purpose": purpose, "reason": str(error)})
                status.wait_for(name, waits_for, f"to {purpose}: {error}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    finally:
        status.stop_waiting(name)
