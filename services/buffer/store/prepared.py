"""Statements that are built once and run often.

SQLAlchemy makes their text, once; the driver prepares and runs it. To look each of them up again,
wrap its cursor and its rows takes SQLAlchemy more than twice as long as the driver takes for all
the rest (docs/decisions/0050-statements-that-the-driver-runs.md).
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import namedtuple_row
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.compiler import SQLCompiler

Values = Mapping[str, object]
Asked = tuple[sa.Executable, Values | None]
"""A statement whose rows are wanted."""
Row = Any
"""A tuple whose columns are attributes too; ids are texts."""


def driver_of(connection: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    """The driver's own connection, in the same transaction."""
    assert connection.sync_connection is not None
    driver = connection.sync_connection.connection.driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    return driver


@asynccontextmanager
async def unanswered(connection: AsyncConnection) -> AsyncIterator[None]:
    """Statements of the block whose answers nobody reads take one way to the database and back.

    Within another such block it is part of that one. COPY cannot be among them. What one of them
    raises, a later one or the block's end raises, as an error of the driver.
    """
    if is_unanswered(connection):
        yield
        return
    async with driver_of(connection).pipeline() as pipeline:
        yield
        _end_with_sync(pipeline)


def is_unanswered(connection: AsyncConnection) -> bool:
    """Whether what is asked now is not answered before the block's end."""
    return driver_of(connection).pgconn.pipeline_status != PipelineStatus.OFF


@asynccontextmanager
async def committing(connection: AsyncConnection) -> AsyncIterator[None]:
    """The same at the end of a transaction, which is committed with them."""
    async with unanswered(connection):
        yield
        await driver_of(connection).cursor().execute("COMMIT", prepare=False)


def _end_with_sync(pipeline: psycopg.AsyncPipeline) -> None:
    """Keep the driver from sending a Flush behind the Sync that ends the block.

    Postgres takes it for a sign of life in the transaction, and its clock for sessions that give
    none would start again with the next statement only: a process that freezes before it would
    hold its locks for as long as it is frozen.
    """
    fetch = pipeline._fetch_gen
    vars(pipeline)["_fetch_gen"] = lambda flush: fetch(flush=False)  # noqa: ARG005 - the driver's


async def fetch(
    connection: AsyncConnection, statement: sa.Executable, values: Values | None = None
) -> list[Row]:
    """All rows that a statement gives."""
    (rows,) = await fetch_together(connection, (statement, values))
    return rows


async def fetch_together(connection: AsyncConnection, *asked: Asked) -> list[list[Row]]:
    """All rows of each of these statements, which run one after another in one way."""
    cursors = [driver_of(connection).cursor(row_factory=namedtuple_row) for _ in asked]
    async with AsyncExitStack() as together:
        if len(asked) > 1 or _begins(connection):
            await together.enter_async_context(unanswered(connection))
        for cursor, (statement, values) in zip(cursors, asked, strict=True):
            await _execute(cursor, connection, statement, values)
    return [await cursor.fetchall() for cursor in cursors]


def _begins(connection: AsyncConnection) -> bool:
    """Whether a transaction begins with what is asked now: then BEGIN takes the same way."""
    driver = driver_of(connection)
    is_idle = driver.pgconn.transaction_status == TransactionStatus.IDLE
    return is_idle and not driver.autocommit


async def fetch_column(
    connection: AsyncConnection, statement: sa.Executable, values: Values | None = None
) -> list[Any]:
    """The first value of each row."""
    return [row[0] for row in await fetch(connection, statement, values)]


async def fetch_binary(
    connection: AsyncConnection, statement: sa.Executable, values: Values | None = None
) -> list[tuple[Any, ...]]:
    """Rows with large bytes, sent as they are, not as text; ids come as `uuid.UUID`."""
    cursor = driver_of(connection).cursor(binary=True)
    await _execute(cursor, connection, statement, values)
    return await cursor.fetchall()


async def execute(
    connection: AsyncConnection, statement: sa.Executable, values: Values | None = None
) -> None:
    """For a statement that gives no rows; within `unanswered` nobody waits for it."""
    cursor = driver_of(connection).cursor()
    await _execute(cursor, connection, statement, values)


async def _execute(
    cursor: psycopg.AsyncCursor[Any],
    connection: AsyncConnection,
    statement: sa.Executable,
    values: Values | None,
) -> None:
    prepared = _prepared(statement, connection.dialect)
    await cursor.execute(prepared.text, prepared.parameters(values or {}), prepare=True)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A statement as the driver takes it."""

    text: bytes
    constants: Values
    """Values that are part of the statement."""
    forms: Mapping[str, Callable[[Any], object]]
    """How values that the driver takes in another form are turned into that."""

    def parameters(self, values: Values) -> dict[str, object]:
        given = {**self.constants, **values}
        for name, form in self.forms.items():
            given[name] = form(given[name])
        return given


@lru_cache(maxsize=1024)
def _prepared(statement: sa.Executable, dialect: sa.Dialect) -> _Prepared:
    compiled = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
    assert isinstance(compiled, SQLCompiler)
    assert not compiled.post_compile_params, "its text would differ from time to time"
    constants = {
        name: bound.value for bound, name in compiled.bind_names.items() if not bound.required
    }
    forms = {bound: bound.type.dialect_impl(dialect) for bound in compiled.bind_names}
    processors = {
        compiled.bind_names[bound]: processor
        for bound, kind in forms.items()
        if (processor := kind.bind_processor(dialect)) is not None
    }
    return _Prepared(str(compiled).encode(), constants, processors)
