"""Inserts of rows: few are queued as JSON, many are streamed with binary COPY."""

import json
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import sqlalchemy as sa
from psycopg import sql
from psycopg.types.json import Jsonb
from sqlalchemy.dialects.postgresql import JSONB, Insert, insert

from services.buffer.store.database import RowValues
from trinity.runtime.sql import Connection

MAX_JSON_ROWS = 64
"""More rows are streamed with COPY, which takes round trips of its own: JSON is queued."""
MAX_SINGLE_BODIES = 8
"""So many rows with large bytes are inserted one by one; as JSON they would be twice as large."""
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
    sa.Boolean: "bool",
    sa.BigInteger: "int8",
    sa.Integer: "int4",
    sa.Float: "float8",
    sa.LargeBinary: "bytea",
    JSONB: "jsonb",
}
_ADAPTERS: dict[type[object], Adapter] = {sa.Uuid: _bytes_of, JSONB: _json_of}


async def insert_rows(
    connection: Connection,
    table: sa.Table,
    rows: Sequence[RowValues],
    *,
    ignore_existing: bool = False,
) -> None:
    """Inserts rows with the same columns, in their order; none is fine."""
    if not rows:
        return
    if len(rows) > MAX_JSON_ROWS and not ignore_existing:
        await _copy(connection, table, rows)
        return
    statement = (_insert_new_json if ignore_existing else _insert_json)(table, tuple(rows[0]))
    await connection.execute(statement, {"rows": _as_json(rows)})


async def insert_bodies(connection: Connection, table: sa.Table, rows: Sequence[RowValues]) -> None:
    """Does the same with rows that hold large bytes."""
    if len(rows) > MAX_SINGLE_BODIES:
        await _copy(connection, table, rows)
        return
    for row in rows:
        await connection.execute(_insert(table, tuple(row)), row)


@lru_cache(maxsize=1024)
def _insert(table: sa.Table, names: tuple[str, ...]) -> sa.Insert:
    values = {name: sa.bindparam(name, type_=table.c[name].type) for name in names}
    return sa.insert(table).values(values)


@lru_cache
def _insert_json(table: sa.Table, names: tuple[str, ...]) -> Insert:
    """Builds an insert of the rows in the parameter `rows`, made by `_as_json`, in order.

    Postgres parses JSON faster than the driver writes an array for each column.
    """
    columns = ", ".join(f'"{name}"' for name in names)
    chosen = sa.text(
        f"SELECT {columns} FROM json_populate_recordset(NULL::{table.name}, CAST(:rows AS json))"
    )
    return insert(table).from_select(names, chosen.columns(*(table.c[name] for name in names)))


@lru_cache
def _insert_new_json(table: sa.Table, names: tuple[str, ...]) -> Insert:
    """Builds the same insert, ignoring rows that exist."""
    return _insert_json(table, names).on_conflict_do_nothing()


def _as_json(rows: Sequence[RowValues]) -> str:
    """Returns rows as one JSON parameter."""
    try:
        return json.dumps(rows, default=_hex, allow_nan=False)
    except ValueError:  # NaN and infinity are not JSON, but Postgres reads them as texts
        return json.dumps(
            [{name: _finite(value) for name, value in row.items()} for row in rows], default=_hex
        )


def _finite(value: object) -> object:
    is_odd = isinstance(value, float) and not math.isfinite(value)
    return str(value) if is_odd else value


def _hex(value: object) -> str:
    """Encodes bytes, the only kind of value here that JSON does not know."""
    assert isinstance(value, bytes)
    return f"\\x{value.hex()}"


async def _copy(connection: Connection, table: sa.Table, rows: Sequence[RowValues]) -> None:
    names = tuple(rows[0])
    types, adapters = _forms(table, names)
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
        sql.Identifier(table.name), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    async with connection.copy(statement) as copy:
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
