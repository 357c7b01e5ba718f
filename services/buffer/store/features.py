"""Statements on features: numeric columns that selectors use, stored apart from the rows."""

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.store.prepared import fetch_binary
from services.buffer.store.tables import task, task_feature
from trinity.errors import PreconditionFailed
from trinity.types import JsonValue

Numbers = npt.NDArray[np.float64]
T = TypeVar("T")
READ_AT_ONCE = 5_000
PARSE_AT_ONCE = 20
PART_BYTES = 1024 * 1024
STORED_BYTES = 2 * 1024 * 1024
C = task_feature.c


async def known_features(
    connection: AsyncConnection, tenant: str, taskset_id: str, names: Sequence[str]
) -> set[str]:
    """Returns those of the features that are already stored."""
    statement = sa.select(C.name).where(
        C.tenant == tenant, C.taskset_id == taskset_id, C.name.in_(list(names))
    )
    return set((await connection.execute(statement)).scalars())


async def load_features(
    connection: AsyncConnection, tenant: str, taskset_id: str, names: Sequence[str]
) -> list[Numbers]:
    """Returns the features as arrays by row, in the order of `names`.

    Raises: PreconditionFailed when one is not stored.
    """
    known = await known_features(connection, tenant, taskset_id, names)
    if missing := [name for name in names if name not in known]:
        raise PreconditionFailed(f"column {missing[0]} of taskset {taskset_id} was not read yet")
    own = {"tenant": tenant, "taskset_id": taskset_id}
    return [await _load(connection, {**own, "name": name}) for name in names]


_OWN = sa.and_(
    C.tenant == sa.bindparam("tenant"),
    C.taskset_id == sa.bindparam("taskset_id"),
    C.name == sa.bindparam("name"),
)
_SIZE = sa.select(sa.func.octet_length(C.numbers)).where(_OWN)
_PART = sa.select(sa.func.substring(C.numbers, sa.bindparam("first"), sa.bindparam("count"))).where(
    _OWN
)


async def _load(connection: AsyncConnection, own: Mapping[str, str]) -> Numbers:
    """Reads in parts: a connection keeps memory for the largest row that it ever received."""
    [(num_bytes,)] = await fetch_binary(connection, _SIZE, own)
    whole = bytearray()
    for first in range(0, num_bytes, PART_BYTES):
        values = {**own, "first": first + 1, "count": PART_BYTES}
        [(part,)] = await fetch_binary(connection, _PART, values)
        whole += part
    return np.frombuffer(whole, dtype="<f8")


async def read_features(
    connection: AsyncConnection, tenant: str, taskset_id: str, num_rows: int, name: str
) -> Numbers:
    """Returns a column of all rows as numbers, which the database extracts in parts.

    Raises: PreconditionFailed naming the first row that has no number there.
    """
    numbers = np.empty(num_rows, dtype="<f8")
    await connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
    own = sa.and_(task.c.tenant == tenant, task.c.taskset_id == taskset_id)
    for first in range(0, num_rows, READ_AT_ONCE):
        some = range(first, min(first + READ_AT_ONCE, num_rows))
        try:
            async with connection.begin_nested():
                texts = await _texts(connection, own, some, name)
        except sa.exc.DataError:  # the JSON holds a null character or an unpaired surrogate
            texts = await _parsed(connection, own, some, name)
        for row, text in texts:
            numbers[row] = _number(text, name, row)
    return numbers


async def _texts(
    connection: AsyncConnection, own: sa.ColumnElement[bool], rows: range, name: str
) -> list[tuple[int, str | None]]:
    """Returns the values of a column as texts.

    Raises: DataError when any value of a row cannot be a text in Postgres.
    """
    text = sa.cast(task.c.body, sa.JSON)[name].as_string()
    return await _select(connection, own, rows, text)


async def _parsed(
    connection: AsyncConnection, own: sa.ColumnElement[bool], rows: range, name: str
) -> list[tuple[int, str | None]]:
    """Returns the same for any JSON, by parsing whole rows; few at a time, as they may be large."""
    texts = []
    for first in range(0, len(rows), PARSE_AT_ONCE):
        some = rows[first : first + PARSE_AT_ONCE]
        for row, body in await _select(connection, own, some, task.c.body):
            texts.append((row, _as_text(json.loads(body).get(name))))
    return texts


async def _select(
    connection: AsyncConnection,
    own: sa.ColumnElement[bool],
    rows: range,
    column: sa.ColumnElement[T],
) -> list[tuple[int, T]]:
    statement = (
        sa.select(task.c.index, column)
        .where(own, task.c.index >= rows.start, task.c.index < rows.stop)
        .order_by(task.c.index)
    )
    return [(row, value) for row, value in await connection.execute(statement)]


def _as_text(value: JsonValue) -> str | None:
    """Returns the value as the database would."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _number(text: str | None, name: str, row: int) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise PreconditionFailed(f"row {row}: column {name} holds no number, but {text!r:.60}")
    return number


async def store_features(
    connection: AsyncConnection, tenant: str, taskset_id: str, name: str, numbers: Numbers
) -> None:
    """Stores a column, unless it is stored already; every read of it gives the same."""
    whole = numbers.astype("<f8").tobytes()
    own = {"tenant": tenant, "taskset_id": taskset_id, "name": name}
    statement = insert(task_feature).values({**own, "numbers": whole[:STORED_BYTES]})
    statement = statement.on_conflict_do_nothing()
    if (await connection.execute(statement.returning(C.name))).first() is None:
        return
    for first in range(STORED_BYTES, len(whole), STORED_BYTES):
        more = sa.literal(whole[first : first + STORED_BYTES], sa.LargeBinary)
        grown = sa.update(task_feature).where(
            C.tenant == tenant, C.taskset_id == taskset_id, C.name == name
        )
        await connection.execute(grown.values(numbers=C.numbers.op("||")(more)))
