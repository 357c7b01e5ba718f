"""Statements that are built once and run often.

SQLAlchemy makes their text, once; the driver prepares and runs it. To look each of them up again,
wrap its cursor and its rows takes SQLAlchemy more than twice as long as the driver takes for all
the rest (docs/decisions/0050-statements-that-the-driver-runs.md).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.rows import namedtuple_row
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.compiler import SQLCompiler

Values = Mapping[str, object]
Row = Any
"""A tuple whose columns are attributes too; ids are texts."""


def driver_of(connection: AsyncConnection) -> psycopg.AsyncConnection[Any]:
    """The driver's own connection, in the same transaction."""
    assert connection.sync_connection is not None
    driver = connection.sync_connection.connection.driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    return driver


async def fetch(
    connection: AsyncConnection, statement: sa.Executable, values: Values | None = None
) -> list[Row]:
    """All rows that a statement gives."""
    cursor = driver_of(connection).cursor(row_factory=namedtuple_row)
    await _execute(cursor, connection, statement, values)
    return await cursor.fetchall()


async def fetch_first(
    connection: AsyncConnection, statement: sa.Executable, values: Values | None = None
) -> Row | None:
    """Its first row, if there is one."""
    rows = await fetch(connection, statement, values)
    return rows[0] if rows else None


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
