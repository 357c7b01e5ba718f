"""A session that says nothing within a transaction is ended; who had it hears of an outage."""

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.buffer.store.database import driver_of, unanswered
from trinity.errors import Unavailable
from trinity.runtime.postgres import async_engine, map_database_errors, ping

Act = Callable[[AsyncConnection], Awaitable[object]]
QUESTION = sa.text("SELECT 1")


async def ask(connection: AsyncConnection) -> None:
    await connection.execute(QUESTION)


async def copy(connection: AsyncConnection) -> None:
    async with (driver_of(connection)).cursor().copy("COPY silent FROM STDIN") as rows:
        await rows.write_row([1])


async def ask_unanswered(connection: AsyncConnection) -> None:
    async with unanswered(connection):
        await connection.execute(QUESTION)


async def only_commit(_: AsyncConnection) -> None:
    pass


async def be_silent(connection: AsyncConnection, dsn: str) -> None:
    """Until the server has ended the session."""
    driver = driver_of(connection)
    alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other:
        pid = driver.info.backend_pid
        while await (await other.execute(alive, [pid])).fetchone() != (0,):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def transaction(engine: AsyncEngine, dsn: str, before: Act, after: Act) -> None:
    with map_database_errors():
        async with engine.begin() as connection:
            await connection.execute(sa.text("CREATE TEMPORARY TABLE silent (n int)"))
            await before(connection)
            await be_silent(connection, dsn)
            await after(connection)


@pytest.mark.parametrize("before", [ask, ask_unanswered])
@pytest.mark.parametrize("after", [ask, copy, ask_unanswered, only_commit])
async def test_who_was_silent_in_a_transaction_may_try_again(
    before: Act, after: Act, postgres_dsn: str
) -> None:
    engine = async_engine(postgres_dsn, "buffer", idle_transaction_seconds=0.2)
    try:
        with pytest.raises(Unavailable):
            await transaction(engine, postgres_dsn, before, after)
        await ping(engine)
    finally:
        await engine.dispose()
