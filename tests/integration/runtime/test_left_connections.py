"""A connection whose user left in the middle: the next user gets transactions as always."""

import asyncio
from collections.abc import AsyncIterator
from typing import LiteralString

import psycopg.waiting
import pytest
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.ext.asyncio import AsyncEngine

from trinity.runtime.postgres import async_engine
from trinity.runtime.sql import READ_ONLY, READ_WRITE, transaction

AS_ALWAYS = ("read committed", "off", True)
NOW = sa.text(
    "SELECT current_setting('transaction_isolation') AS isolation,"
    " current_setting('transaction_read_only') AS reads_only, pg_current_xact_id()::text AS number"
)
ROWS = sa.table("kept", sa.column("n", sa.BigInteger), sa.column("m", sa.BigInteger))
PAIR = sa.select(ROWS.c.n, ROWS.c.m)
SLEEP = sa.text("SELECT pg_sleep(240)")
COPY = sql.SQL("COPY (SELECT 1) TO STDOUT")
SOON_SECONDS = 120


@pytest.fixture
async def engine(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncEngine]:
    monkeypatch.setattr(psycopg.waiting, "MAX_BUSY_TIME", 0)  # as in a loop that is always late
    engine = async_engine(postgres_dsn, "buffer", pool_size=1, max_overflow=0)
    async with transaction(engine) as connection:
        await connection.execute(sa.text("CREATE TABLE kept (n bigint, m bigint)"))
        await connection.execute(sa.insert(ROWS).values(n=0, m=0))
    yield engine
    await engine.dispose()


@pytest.mark.parametrize(
    "begin", [READ_WRITE, READ_ONLY, None], ids=["changing", "reading", "autocommit"]
)
async def test_a_user_that_is_cancelled_leaves_all_or_nothing(
    engine: AsyncEngine, begin: LiteralString | None
) -> None:
    assert await look(engine, begin) == AS_ALWAYS
    turns = 0
    while not await leave_after(turns, engine, begin):
        turns += 1
    assert turns > 5, "few left in the middle"


async def leave_after(turns: int, engine: AsyncEngine, begin: LiteralString | None) -> bool:
    """Cancels a user after so many turns of the loop; returns whether all was done by then."""
    user = asyncio.create_task(use(engine, begin, turns + 1))
    for _ in range(turns):
        await asyncio.sleep(0)
    is_done = not user.cancel()
    [left] = await asyncio.gather(user, return_exceptions=True)
    assert left is None or isinstance(left, asyncio.CancelledError), repr(left)
    assert await look(engine, begin) == AS_ALWAYS, f"after {turns} turns"
    return is_done


async def use(engine: AsyncEngine, begin: LiteralString | None, number: int) -> None:
    async with transaction(engine, begin) as connection:
        await connection.fetch(PAIR)
        if begin != READ_ONLY:
            await connection.execute(sa.update(ROWS).values(n=number))
        await connection.fetch_together((PAIR, {}), (PAIR, {}))
        if begin != READ_ONLY:
            await connection.execute(sa.update(ROWS).values(m=number))


async def look(engine: AsyncEngine, begin: LiteralString | None) -> tuple[str, str, bool]:
    """Its isolation, whether it only reads, and whether two statements are in one transaction."""
    async with asyncio.timeout(SOON_SECONDS), transaction(engine) as connection:
        first = await connection.fetch_one(NOW)
        second = await connection.fetch_one(NOW)
        n, m = await connection.fetch_one(PAIR)
        async with connection.copy(COPY) as rows:  # possible only outside of a pipeline
            assert [bytes(row) async for row in rows] == [b"1\n"]
    assert n == m or begin is None, "half of a transaction is stored"
    return second.isolation, second.reads_only, first.number == second.number


@pytest.mark.parametrize("begin", [READ_WRITE, None], ids=["changing", "autocommit"])
async def test_a_user_that_is_cancelled_does_not_wait_for_its_statement(
    engine: AsyncEngine, begin: LiteralString | None
) -> None:
    before = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3), transaction(engine, begin) as connection:
            await connection.execute(sa.update(ROWS).values(n=99, m=99))
            await connection.fetch_together((SLEEP, {}), (SLEEP, {}))
    assert asyncio.get_running_loop().time() - before < SOON_SECONDS
    assert await look(engine, begin) == AS_ALWAYS
    async with transaction(engine) as connection:
        assert await connection.fetch_column(sa.select(ROWS.c.n)) == [99 if begin is None else 0]
