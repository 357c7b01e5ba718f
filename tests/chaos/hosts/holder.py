"""Takes a lock as a service would and keeps it: python -m tests.chaos.hosts.holder DSN"""

import asyncio
import sys

import sqlalchemy as sa

from trinity.runtime.postgres import async_engine
from trinity.runtime.sql import transaction

LOCK = sa.text("SELECT pg_advisory_xact_lock(1)")


async def take(dsn: str) -> None:
    """Return when the lock was free."""
    engine = async_engine(dsn, "buffer", statement_timeout_seconds=0)
    async with transaction(engine) as connection:
        await connection.fetch(LOCK)
    await engine.dispose()


async def hold(dsn: str) -> None:
    """Until killed."""
    engine = async_engine(dsn, "buffer")
    async with transaction(engine) as connection:
        await connection.fetch(LOCK)
        sys.stdout.write("locked\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1]))
