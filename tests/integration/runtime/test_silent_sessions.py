"""A session that says nothing within a transaction is ended; its user hears of an outage."""

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.ext.asyncio import AsyncEngine

from trinity.errors import Unavailable
from trinity.runtime.postgres import async_engine, map_database_errors, ping
from trinity.runtime.sql import Connection, transaction

Act = Callable[[Connection], Awaitable[object]]
QUESTION = sa.text("SELECT 1")
COPY = sql.SQL("COPY silent FROM STDIN")
SOON_SECONDS = 120


async def ask(connection: Connection) -> None:
    await connection.fetch(QUESTION)


async def ask_together(connection: Connection) -> None:
    await connection.fetch_together((QUESTION, {}), (QUESTION, {}))


async def ask_and_queue(connection: Connection) -> None:
    await connection.fetch(QUESTION)
    await connection.execute(QUESTION)


async def flush(connection: Connection) -> None:
    await connection.execute(QUESTION)
    await connection.flush()


async def copy(connection: Connection) -> None:
    async with connection.copy(COPY) as rows:
        await rows.write_row([1])


async def fail_within_a_savepoint(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        async with connection.savepoint():
            await connection.fetch(sa.text("SELECT 1 / 0"))


async def only_commit(_: Connection) -> None:
    pass


async def be_silent(connection: Connection, dsn: str) -> None:
    """Until the server has ended the session."""
    alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    async with (
        asyncio.timeout(SOON_SECONDS),
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as other,
    ):
        pid = connection._driver.info.backend_pid
        while await (await other.execute(alive, [pid])).fetchone() != (0,):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def use(engine: AsyncEngine, dsn: str, before: Act, after: Act) -> None:
    with map_database_errors():
        async with transaction(engine) as connection:
            await connection.execute(sa.text("CREATE TEMPORARY TABLE silent (n int)"))
            await before(connection)
            await be_silent(connection, dsn)
            await after(connection)


@pytest.mark.parametrize(
    "before", [ask, ask_together, ask_and_queue, flush, copy, fail_within_a_savepoint]
)
@pytest.mark.parametrize("after", [ask, copy, only_commit])
async def test_a_transaction_that_was_silent_may_be_tried_again(
    before: Act, after: Act, postgres_dsn: str
) -> None:
    engine = async_engine(postgres_dsn, "buffer", idle_transaction_seconds=0.2)
    try:
        with pytest.raises(Unavailable):
            await use(engine, postgres_dsn, before, after)
        await ping(engine)
    finally:
        await engine.dispose()
