"""The database as a loop of the service sees it, with statements that soon take too long."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.buffer.store.database import BufferDatabase
from trinity.runtime.postgres import async_engine

STATEMENT_SECONDS = 1.0


@asynccontextmanager
async def impatient_database(dsn: str) -> AsyncIterator[BufferDatabase]:
    engine = async_engine(dsn, "buffer", statement_timeout_seconds=STATEMENT_SECONDS)
    database = BufferDatabase(engine)
    database.open()
    try:
        yield database
    finally:
        await engine.dispose()
