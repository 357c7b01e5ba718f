"""Bulk inserts: many rows are streamed with binary COPY, without a detour over text."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import sqlalchemy as sa
from psycopg import sql
from psycopg.types.json import Jsonb
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.store.database import Values, driver_of, execute, is_unanswered

FEW_ROWS = 8
"""Up to so many rows COPY is not worth it: it takes round trips of its own."""
Adapter = Callable[[object], object]


@lru_cache(maxsize=8192)
def _bytes_of(uuid_text: object) -> object:
    """Returns the bytes of an id as they are sent; the driver would build a UUID object first."""
    return None if uuid_text is None else bytes.fromhex(str(uuid_text).replace("-", ""))


def _json_of(value: object) -> object:
    return None if value is None else Jsonb(value)


# The driver's type for each column type; ids are texts everywhere else.
_TYPE_NAMES: dict[type[object], str] = {
    sa.Text: "text",
    sa.Uuid: "bytea",
    sa.BigInteger: "int8",
    sa.Integer: "int4",
    sa.Float: "float8",
    sa.LargeBinary: "bytea",
    JSONB: "jsonb",
}
_ADAPTERS: dict[type[object], Adapter] = {sa.Uuid: _bytes_of, JSONB: _json_of}


async def add_rows(connection: AsyncConnection, table: sa.Table, rows: Sequence[Values]) -> None:
    """Adds rows with the same columns to a table, in their order; none is fine.

    They are streamed with COPY; within `unanswered`, where COPY is not possible, each is inserted
    by its own statement.
    """
    if not rows:
        return
    if is_unanswered(connection):
        for row in rows:
            await execute(connection, _insert(table, tuple(row)), row)
        return
    await _copy(connection, table, rows)


@lru_cache(maxsize=1024)
def _insert(table: sa.Table, names: tuple[str, ...]) -> sa.Insert:
    values = {name: sa.bindparam(name, type_=table.c[name].type) for name in names}
    return sa.insert(table).values(values)


async def _copy(connection: AsyncConnection, table: sa.Table, rows: Sequence[Values]) -> None:
    names = tuple(rows[0])
    types, adapters = _forms(table, names)
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
        sql.Identifier(table.name), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    async with driver_of(connection).cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            values = [row[name] for name in names]
            for place, adapt in adapters:
                values[place] = adapt(values[place])
            await copy.write_row(values)


@lru_cache
def _forms(
    table: sa.Table, names: tuple[str, ...]
) -> tuple[Sequence[str], Sequence[tuple[int, Adapter]]]:
    """Returns the driver's type of each column, and adapters for the values that need one."""
    kinds = [type(table.c[name].type) for name in names]
    adapters = [(i, _ADAPTERS[kind]) for i, kind in enumerate(kinds) if kind in _ADAPTERS]
    return [_TYPE_NAMES[kind] for kind in kinds], adapters
