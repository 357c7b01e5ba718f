"""Statements that are built once and run often.

SQLAlchemy compiles them once; the driver prepares and runs them. If SQLAlchemy ran them, its cache
lookup and its wrappers of cursor and rows would take more than twice the time of the driver's own
work (docs/decisions/0050-statements-that-the-driver-runs.md).
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
"""A statement with its parameters, whose rows are returned."""
Row = Any
"""A tuple whose columns are attributes too; ids are texts."""


def driver_of(connection: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    """Returns the driver's connection, which is in the same transaction."""
    assert connection.sync_connection is not None
    driver = connection.sync_connection.connection.driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    return driver


@asynccontextmanager
async def unanswered(connection: AsyncConnection) -> AsyncIterator[None]:
    """Pipelines the statements of the block: they take one round trip, and give no rows.

    A nested block is part of the outer one. COPY is not possible in a block. An error of a
    statement is raised by a later statement or at the end of the block, as an error of the driver.
    """
    if is_unanswered(connection):
        yield
        return
    async with driver_of(connection).pipeline() as pipeline:
        yield
        _end_with_sync(pipeline)


def is_unanswered(connection: AsyncConnection) -> bool:
    """True while statements are pipelined: their results are not read before the block exits."""
    return driver_of(connection).pgconn.pipeline_status != PipelineStatus.OFF


@asynccontextmanager
async def committing(connection: AsyncConnection) -> AsyncIterator[None]:
    """Does the same at the end of a transaction, with its COMMIT in the same round trip."""
    async with unanswered(connection):
        yield
        await driver_of(connection).cursor().execute("COMMIT", prepare=False)


def _end_with_sync(pipeline: psycopg.AsyncPipeline) -> None:
    """Keeps the driver from sending a Flush after the Sync that ends the block.

    Postgres takes the Flush for activity: it stops the timeout for idle transactions, and starts
    it again only after the next statement. A process that freezes before that would hold its locks
    for as long as it is frozen.
    """
    fetch = pipeline._fetch_gen
    vars(pipeline)["_fetch_gen"] = lambda flush: fetch(flush=False)  # noqa: ARG005 - the driver's


async def fetch(
    connection: AsyncConnection, statement: sa.Executable, values: Values | None = None
) -> list[Row]:
    """Runs a statement and returns all its rows."""
    (rows,) = await fetch_together(connection, (statement, values))
    return rows


async def fetch_together(connection: AsyncConnection, *asked: Asked) -> list[list[Row]]:
    """Runs statements one after another in one round trip; returns the rows of each."""
    cursors = [driver_of(connection).cursor(row_factory=namedtuple_row) for _ in asked]
    async with AsyncExitStack() as together:
        if len(asked) > 1 or _begins(connection):
            await together.enter_async_context(unanswered(connection))
        for cursor, (statement, values) in zip(cursors, asked, strict=True):
            await _execute(cursor, connection, statement, values)
    return [await cursor.fetchall() for cursor in cursors]


def _begins(connection: AsyncConnection) -> bool:
    """True if the next statement begins a transaction: BEGIN can share its round trip then."""
    driver = driver_of(connection)
    is_idle = driver.pgconn.transaction_status == TransactionStatus.IDLE
    return is_idle and not driver.autocommit


async def fetch_column(
    connection: AsyncConnection, statement: sa.Executable, values: Values | None = None
) -> list[Any]:
    """Runs a statement and returns the first value of each row."""
    return [row[0] for row in await fetch(connection, statement, values)]


async def fetch_binary(
    connection: AsyncConnection, statement: sa.Executable, values: Values | None = None
) -> list[tuple[Any, ...]]:
    """Runs a statement whose rows come in binary form, for large bytes; ids are `uuid.UUID`."""
    cursor = driver_of(connection).cursor(binary=True)
    await _execute(cursor, connection, statement, values)
    return await cursor.fetchall()


async def execute(
    connection: AsyncConnection, statement: sa.Executable, values: Values | None = None
) -> None:
    """Runs a statement without rows; within `unanswered` it is sent without waiting for it."""
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
    """A compiled statement for the driver."""

    text: bytes
    constants: Values
    """Values that are part of the statement."""
    forms: Mapping[str, Callable[[Any], object]]
    """Conversions of parameters that the driver needs in another form."""

    def parameters(self, values: Values) -> dict[str, object]:
        merged = {**self.constants, **values}
        for name, form in self.forms.items():
            merged[name] = form(merged[name])
        return merged


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
