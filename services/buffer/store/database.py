"""Transactions on the buffer's schema, and helpers shared by all statements."""

import contextlib
import json
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from services.buffer.store.arrays import BIGINTS, UUIDS
from services.buffer.store.prepared import execute
from services.buffer.store.tables import STAGE_KEY
from trinity.errors import Unavailable
from trinity.postgres import map_database_errors
from trinity.types import StageKey

CHANNEL = "buffer"
Row = Mapping[str, object]


class Database:
    """Opens transactions, once the schema has been checked.

    Raises errors.Unavailable when the database does not answer or `open` was not called yet.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._is_open = False

    def open(self) -> None:
        """Allows transactions: the schema is the one that this program expects."""
        self._is_open = True

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Opens a transaction that commits when the block ends and rolls back on an error."""
        if not self._is_open:
            raise Unavailable("the buffer is starting: the database is not ready yet")
        with map_database_errors():
            async with self._engine.begin() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def autocommit(self) -> AsyncIterator[AsyncConnection]:
        """Opens a connection with autocommit: for single statements, and for blocks that only read.

        A transaction would not add consistency: under READ COMMITTED each statement sees what is
        committed by then. And its COMMIT takes a round trip.
        """
        if not self._is_open:
            raise Unavailable("the buffer is starting: the database is not ready yet")
        with map_database_errors():
            async with self._engine.connect() as connection:
                yield await connection.execution_options(isolation_level="AUTOCOMMIT")


@lru_cache(maxsize=1024)
def in_stage(table: sa.Table, key: StageKey) -> sa.ColumnElement[bool]:
    """Condition: rows of one stage."""
    return sa.and_(
        table.c.tenant == key.tenant,
        table.c.experiment_id == key.experiment_id,
        table.c.stage == key.stage,
    )


def in_given_stage(table: sa.Table, whose: str = "given") -> sa.ColumnElement[bool]:
    """Condition: rows of the stage in the parameters that `given` makes; for cached statements."""
    return sa.and_(*(table.c[name] == sa.bindparam(f"{whose}_{name}") for name in STAGE_KEY))


def of_stage(table: sa.Table, key: StageKey) -> sa.ColumnElement[bool]:
    """Condition: rows of this stage, as a filter on rows that are looked up by their ids.

    Written so that no index can serve it. With an index, the planner would assume that a stage
    newer than its statistics has few rows, and scan all of them to find those with the ids.
    """
    values = (sa.literal(value, table.c[name].type) for name, value in key_columns(key).items())
    return _place_of(table) == sa.func.concat_ws("/", *values)


def of_given_stage(table: sa.Table, whose: str = "given") -> sa.ColumnElement[bool]:
    """Condition: the same as `of_stage`, for the stage in the parameters that `given` makes."""
    return _place_of(table) == given_place(table, whose)


def given_place(table: sa.Table, whose: str = "given") -> sa.Function[str]:
    """The stage's key from the parameters as one text, with the types of the table's columns."""
    kinds = ((f"{whose}_{name}", table.c[name].type) for name in STAGE_KEY)
    return sa.func.concat_ws("/", *(sa.bindparam(name, type_=kind) for name, kind in kinds))


def _place_of(table: sa.Table) -> sa.Function[str]:
    return sa.func.concat_ws("/", *(table.c[name] for name in STAGE_KEY))


def given(key: StageKey, **values: object) -> dict[str, object]:
    """Returns the parameters of a statement built with `in_given_stage` or `of_given_stage`."""
    return given_as("given", key) | values


def given_as(whose: str, key: StageKey) -> dict[str, object]:
    """Returns the parameters for a stage key under another prefix, for statements on two stages."""
    return {f"{whose}_{name}": value for name, value in key_columns(key).items()}


def among_given(column: sa.Column[str], name: str = "ids") -> sa.ColumnElement[bool]:
    """Condition: rows with one of the ids in the parameter of this name."""
    return column == sa.any_(sa.bindparam(name, type_=UUIDS))


def among(column: sa.Column[str], ids: Iterable[str]) -> sa.ColumnElement[bool]:
    """Condition: rows with one of these ids, sent as one array parameter.

    Tables of a new experiment grow faster than the planner's statistics: a join of two of them
    may compare every row with every other. So statements look rows up by ids, one table at a time.
    """
    return column == sa.any_(sa.cast(list(ids), UUIDS))


def among_numbers(column: sa.Column[int], numbers: Iterable[int]) -> sa.ColumnElement[bool]:
    """Condition: rows with one of these numbers."""
    return column == sa.any_(sa.cast(list(numbers), BIGINTS))


def one_of(column: sa.Column[str], states: Iterable[StrEnum]) -> sa.ColumnElement[bool]:
    """Condition: rows in one of these states, as literals: partial indexes are matched by them."""
    return column.in_([sa.literal_column(f"'{state.value}'") for state in states])


def key_columns(key: StageKey) -> dict[str, object]:
    """Returns the stage's key as values to insert."""
    return {"tenant": key.tenant, "experiment_id": key.experiment_id, "stage": key.stage}


def key_from_row(row: sa.Row[Any]) -> StageKey:
    """Returns the stage's key from a row with its three columns."""
    return StageKey(tenant=row.tenant, experiment_id=row.experiment_id, stage=row.stage)


async def insert_rows(
    connection: AsyncConnection,
    table: sa.Table,
    rows: Sequence[Row],
    *,
    ignore_existing: bool = False,
) -> None:
    """Inserts rows with the same columns in one statement; none is fine."""
    if not rows:
        return
    insert_these = insert_new_of if ignore_existing else insert_of
    await execute(connection, insert_these(table, tuple(rows[0])), {"rows": rows_as_json(rows)})


@lru_cache
def insert_of(table: sa.Table, names: tuple[str, ...]) -> Insert:
    """Builds an insert of the rows in the parameter `rows`, made by `rows_as_json`, in order.

    Postgres parses JSON faster than the driver writes an array for each column.
    """
    columns = ", ".join(f'"{name}"' for name in names)
    chosen = sa.text(
        f"SELECT {columns} FROM json_populate_recordset(NULL::{table.name}, CAST(:rows AS json))"
    )
    return insert(table).from_select(names, chosen.columns(*(table.c[name] for name in names)))


@lru_cache
def insert_new_of(table: sa.Table, names: tuple[str, ...]) -> Insert:
    """Builds the same insert, ignoring rows that exist."""
    return insert_of(table, names).on_conflict_do_nothing()


def rows_as_json(rows: Sequence[Row]) -> str:
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


async def notify(connection: AsyncConnection, *topics: str) -> None:
    """Wakes waiters on these topics, in all replicas, when the transaction commits."""
    names = {f"topic_{place}": topic for place, topic in enumerate(topics)}
    await execute(connection, _notify(len(topics)), names)


@lru_cache
def _notify(num_topics: int) -> sa.Select[Any]:
    topics = (sa.bindparam(f"topic_{place}", type_=sa.Text) for place in range(num_topics))
    return sa.select(*(sa.func.pg_notify(CHANNEL, topic) for topic in topics))


def work_topic(key: StageKey) -> str:
    """Topic: more of a stage's work may be leased."""
    return f"work/{key.tenant}/{key.experiment_id}/{key.stage}"


def batch_topic(key: StageKey) -> str:
    """Topic: a stage's next batch can be composed, or is."""
    return f"batch/{key.tenant}/{key.experiment_id}/{key.stage}"


def stage_topics(key: StageKey) -> tuple[str, str]:
    """Both topics of a stage: the stage itself has changed."""
    return work_topic(key), batch_topic(key)


def tasksets_topic(tenant: str) -> str:
    """Topic: another taskset of a tenant is complete."""
    return f"tasksets/{tenant}"


def progress_topic(tenant: str, experiment_id: str) -> str:
    """Topic: an event of an experiment was logged."""
    return f"progress/{tenant}/{experiment_id}"


def producer_topic(producer: str) -> str:
    """Topic: results of a producer were committed or rejected."""
    return f"producer/{producer}"


SCOPES_TOPIC = "scopes"
RETENTION_TOPIC = "retention"
"""Topic: old contents may not be needed any more."""


def encode_numbers(numbers: Mapping[str, float]) -> dict[str, float | str]:
    """Prepares numbers for a JSON column: numbers that are not finite become texts."""
    return {
        name.replace("\x00", ""): value if math.isfinite(value) else str(value)
        for name, value in numbers.items()
    }


def decode_numbers(stored: Mapping[str, float | str]) -> dict[str, float]:
    """Reverses `encode_numbers`."""
    return {name: float(value) for name, value in stored.items()}
