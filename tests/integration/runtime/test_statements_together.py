"""Statements that take one round trip to the database: all of them count, or none."""

from collections.abc import AsyncIterator

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.ext.asyncio import AsyncEngine

from trinity.errors import Unavailable
from trinity.runtime.postgres import QuickConnection, async_engine, map_database_errors
from trinity.runtime.sql import MAX_QUEUED, READ_ONLY, Connection, transaction

ROWS = sa.table("kept", sa.column("n", sa.BigInteger))
ADD = sa.insert(ROWS).values(n=sa.bindparam("n", type_=sa.BigInteger))
ALL = sa.select(ROWS.c.n).order_by(ROWS.c.n)
SUM = sa.select(sa.func.sum(ROWS.c.n).label("total"))
DIVIDE = sa.select(sa.literal(1) / sa.bindparam("by", type_=sa.Integer))
ONE = sa.text("SELECT 1")
COPY = sql.SQL("COPY kept FROM STDIN")
IN_BUFFER = "-c search_path=buffer"


@pytest.fixture
async def engine(postgres_dsn: str) -> AsyncIterator[AsyncEngine]:
    engine = async_engine(postgres_dsn, "buffer", pool_size=1)
    async with transaction(engine, None) as connection:
        await connection.execute(sa.text("CREATE TABLE kept (n bigint PRIMARY KEY)"))
    yield engine
    await engine.dispose()


async def add(connection: Connection, *numbers: int) -> None:
    for number in numbers:
        await connection.execute(ADD, {"n": number})


async def kept(engine: AsyncEngine) -> list[int]:
    async with transaction(engine, None) as connection:
        return await connection.fetch_column(ALL)


async def in_another_session(dsn: str, query: str) -> int:
    """The number that a query gives."""
    async with await psycopg.AsyncConnection.connect(dsn, options=IN_BUFFER) as other:
        row = await (await other.execute(query.encode())).fetchone()
    assert row is not None
    return int(row[0])


async def test_an_error_of_the_block_rolls_back_what_was_sent_and_what_was_queued(
    engine: AsyncEngine,
) -> None:
    with pytest.raises(InterruptedError):
        async with transaction(engine) as connection:
            await add(connection, 1, 2)
            raise InterruptedError
    with pytest.raises(InterruptedError):
        async with transaction(engine) as connection:
            assert await connection.fetch(ALL) == []
            await add(connection, 3)
            await connection.flush()
            await add(connection, 4)
            raise InterruptedError
    assert await kept(engine) == []


async def test_each_statement_sees_what_those_before_it_did(engine: AsyncEngine) -> None:
    async with transaction(engine) as connection:
        await add(connection, 1, 4)
        rows, [total], [other] = await connection.fetch_together(
            (ALL, {}), (SUM, {}), (DIVIDE, {"by": 1})
        )
    assert [row.n for row in rows] == [1, 4]
    assert (total.total, other[0]) == (5, 1)
    async with transaction(engine) as connection:  # as the first thing of a transaction
        first, second = await connection.fetch_together((ALL, {}), (SUM, {}))
    assert [len(first), second[0].total] == [2, 5]


async def test_what_is_queued_is_sent_with_the_next_fetch_or_the_commit(
    engine: AsyncEngine, postgres_dsn: str
) -> None:
    count = "SELECT count(*) FROM kept"
    async with transaction(engine) as connection:
        await add(connection, 1)
        assert await connection.fetch_column(ALL) == [1]
        await add(connection, 2)
        assert await in_another_session(postgres_dsn, count) == 0
    assert await in_another_session(postgres_dsn, count) == 2


async def test_statements_of_one_round_trip_leave_together(postgres_dsn: str) -> None:
    count = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"
    async with (
        await QuickConnection.connect(postgres_dsn, autocommit=True) as connection,
        connection.pipeline() as pipeline,
    ):
        await connection.execute("SELECT pg_advisory_lock(7)")
        await connection.execute("SELECT 1")
        assert await in_another_session(postgres_dsn, count) == 0
        await pipeline.sync()
        assert await in_another_session(postgres_dsn, count) == 1


async def test_a_long_queue_is_sent_before_the_commit(engine: AsyncEngine) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        async with transaction(engine) as connection:
            await add(connection, *range(MAX_QUEUED - 1))
            await add(connection, 0)
            raise AssertionError("the error came too late")
    assert await kept(engine) == []


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("asks", [True, False], ids=["before a fetch", "before the commit"])
async def test_one_that_fails_takes_the_whole_transaction_with_it(
    engine: AsyncEngine, place: str, asks: bool
) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        async with transaction(engine) as connection:
            await add(connection, 1)
            await connection.flush()
            await add(connection, *((1, 2) if place == "first" else (2, 1)))
            if asks:
                await connection.fetch(ALL)
    assert await kept(engine) == []
    async with transaction(engine) as connection:  # and the connection can be used again
        await add(connection, 5)
    assert await kept(engine) == [5]


async def test_a_question_that_fails_is_told_as_what_it_is(engine: AsyncEngine) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        async with transaction(engine) as connection:
            await connection.fetch_together((ALL, {}), (DIVIDE, {"by": 0}), (SUM, {}))


async def test_after_an_error_within_a_savepoint_the_transaction_goes_on(
    engine: AsyncEngine,
) -> None:
    async with transaction(engine) as connection:
        await add(connection, 1)
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with connection.savepoint():
                await add(connection, 2)
                await connection.fetch_together((DIVIDE, {"by": 0}), (ALL, {}))
        with pytest.raises(psycopg.errors.UniqueViolation):
            async with connection.savepoint():
                await add(connection, 3, 1, 4)  # queued: the error comes up within the savepoint
        with pytest.raises(InterruptedError):
            async with connection.savepoint():
                await add(connection, 5)
                raise InterruptedError
        with pytest.raises(InterruptedError):
            async with connection.savepoint(), connection.copy(COPY) as rows:
                await rows.write_row([6])
                raise InterruptedError
        async with connection.savepoint():
            await add(connection, 7)
        assert await connection.fetch_column(ALL) == [1, 7]
    assert await kept(engine) == [1, 7]


async def test_an_error_before_a_savepoint_is_not_taken_for_one_of_its_block(
    engine: AsyncEngine,
) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        async with transaction(engine) as connection:
            await add(connection, 1, 1)
            async with connection.savepoint():
                raise AssertionError("the error came too late")
    assert await kept(engine) == []


async def test_rows_are_copied_in_the_order_of_the_statements(engine: AsyncEngine) -> None:
    async with transaction(engine) as connection:
        await add(connection, 1)
        async with connection.copy(COPY) as rows:
            await rows.write_row([2])
        await add(connection, 3)
        assert await connection.fetch_column(ALL) == [1, 2, 3]
    async with transaction(engine) as connection, connection.copy(COPY) as rows:
        await rows.write_row([4])
    with pytest.raises(InterruptedError):
        async with transaction(engine) as connection:
            async with connection.copy(COPY) as rows:
                await rows.write_row([5])
            raise InterruptedError
    assert await kept(engine) == [1, 2, 3, 4]


async def test_a_transaction_that_only_reads_sees_one_snapshot(
    engine: AsyncEngine, postgres_dsn: str
) -> None:
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        async with transaction(engine, READ_ONLY) as connection:
            await add(connection, 1)
    async with transaction(engine, READ_ONLY) as connection:
        assert await connection.fetch(ALL) == []
        await in_another_session(postgres_dsn, "INSERT INTO kept VALUES (1) RETURNING n")
        assert await connection.fetch(ALL) == []
    assert await kept(engine) == [1]


async def test_with_autocommit_each_statement_counts_at_once(engine: AsyncEngine) -> None:
    with pytest.raises(InterruptedError):
        async with transaction(engine, None) as connection:
            await add(connection, 1)
            raise InterruptedError
    assert await kept(engine) == [1]


async def test_statements_stay_prepared_from_one_transaction_to_the_next(
    engine: AsyncEngine,
) -> None:
    for _ in range(7):
        async with transaction(engine) as connection:
            await connection.fetch(SUM)
    async with transaction(engine, None) as connection:
        names = await connection.fetch_column(
            sa.text("SELECT name FROM pg_prepared_statements WHERE statement LIKE '%sum(kept.n)%'")
        )
    assert len(names) == 1


async def test_a_session_that_ended_meanwhile_is_an_outage(
    engine: AsyncEngine, postgres_dsn: str
) -> None:
    with pytest.raises(Unavailable), map_database_errors():
        async with transaction(engine) as connection:
            await add(connection, 1)
            await connection.flush()
            await end_sessions(postgres_dsn)
            await add(connection, 2)
    assert await kept(engine) == []


async def test_after_one_lost_session_the_others_are_tested_before_use(postgres_dsn: str) -> None:
    engine = async_engine(postgres_dsn, "buffer", pool_size=3)
    try:
        async with transaction(engine), transaction(engine), transaction(engine) as last:
            await last.fetch(ONE)
        await end_sessions(postgres_dsn)
        with pytest.raises(Unavailable), map_database_errors():
            async with transaction(engine) as connection:
                await connection.fetch(ONE)
        async with transaction(engine) as first, transaction(engine) as second:
            assert await first.fetch_value(ONE) == await second.fetch_value(ONE) == 1
    finally:
        await engine.dispose()


async def end_sessions(dsn: str) -> None:
    others = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(others)
