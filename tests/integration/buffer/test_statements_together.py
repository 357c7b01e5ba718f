"""Statements that take one way to the database together: all of them count, or none."""

from collections.abc import AsyncIterator

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.buffer.store.database import committing, execute, fetch, fetch_together, unanswered
from trinity.errors import Unavailable
from trinity.runtime.postgres import async_engine, map_database_errors

ROWS = sa.table("kept", sa.column("n", sa.BigInteger))
ADD = sa.insert(ROWS).values(n=sa.bindparam("n", type_=sa.BigInteger))
ALL = sa.select(ROWS.c.n).order_by(ROWS.c.n)
SUM = sa.select(sa.func.sum(ROWS.c.n).label("total"))
DIVIDE = sa.select(sa.literal(1) / sa.bindparam("by", type_=sa.Integer))


@pytest.fixture
async def engine(postgres_dsn: str) -> AsyncIterator[AsyncEngine]:
    engine = async_engine(postgres_dsn, "buffer")
    async with engine.begin() as connection:
        await connection.execute(sa.text("CREATE TABLE kept (n bigint PRIMARY KEY)"))
    yield engine
    await engine.dispose()


async def add(connection: AsyncConnection, *numbers: int) -> None:
    for number in numbers:
        await execute(connection, ADD, {"n": number})


async def kept(engine: AsyncEngine) -> list[int]:
    async with engine.connect() as connection:
        return list((await connection.execute(sa.text("SELECT n FROM kept ORDER BY n"))).scalars())


async def test_a_transaction_that_begins_with_statements_together_can_be_rolled_back(
    engine: AsyncEngine,
) -> None:
    with pytest.raises(InterruptedError):
        async with engine.begin() as connection:
            async with unanswered(connection):
                await add(connection, 1, 2)
            raise InterruptedError
    with pytest.raises(InterruptedError):
        async with engine.begin() as connection:
            assert await fetch(connection, ALL) == []
            await add(connection, 3)
            raise InterruptedError
    assert await kept(engine) == []


async def test_each_statement_sees_what_those_before_it_did(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await add(connection, 1)
        await add(connection, 4)
        rows, [total], [other] = await fetch_together(
            connection, (ALL, None), (SUM, None), (DIVIDE, {"by": 1})
        )
    assert [row.n for row in rows] == [1, 4]
    assert (total.total, other[0]) == (5, 1)
    async with engine.begin() as connection:  # as the first thing of a transaction
        first, second = await fetch_together(connection, (ALL, None), (SUM, None))
    assert [len(first), second[0].total] == [2, 5]


async def test_what_ends_a_transaction_is_committed_with_it(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await add(connection, 1)
        async with committing(connection), unanswered(connection):
            await add(connection, 2, 3)
        assert await kept(engine) == [1, 2, 3], "before the transaction's own end"
    async with engine.begin() as connection, committing(connection):
        await add(connection, 4)
    assert await kept(engine) == [1, 2, 3, 4]


@pytest.mark.parametrize("place", ["first", "last"])
async def test_one_that_fails_takes_the_whole_transaction_with_it(
    engine: AsyncEngine, place: str
) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        async with engine.begin() as connection:
            await add(connection, 1)
            async with committing(connection):
                await add(connection, *((1, 2) if place == "first" else (2, 1)))
    assert await kept(engine) == []
    async with engine.begin() as connection:  # and the connection can be used again
        await add(connection, 5)
    assert await kept(engine) == [5]


async def test_an_error_of_the_block_itself_commits_nothing(engine: AsyncEngine) -> None:
    with pytest.raises(InterruptedError):
        async with engine.begin() as connection, committing(connection):
            await add(connection, 1)
            raise InterruptedError
    assert await kept(engine) == []


async def test_a_question_that_fails_is_told_as_what_it_is(engine: AsyncEngine) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        async with engine.begin() as connection:
            await fetch_together(connection, (ALL, None), (DIVIDE, {"by": 0}), (SUM, None))


async def test_a_session_that_ended_meanwhile_is_an_outage(
    engine: AsyncEngine, postgres_dsn: str
) -> None:
    with pytest.raises(Unavailable), map_database_errors():
        async with engine.begin() as connection:
            await add(connection, 1)
            await end_sessions(postgres_dsn)
            async with committing(connection):
                await add(connection, 2)
    assert await kept(engine) == []


async def end_sessions(dsn: str) -> None:
    others = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(others)
