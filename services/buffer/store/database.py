"""Transactions on the buffer's schema, and the helpers that all statements share."""

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
    """Opens transactions once its schema is known to be there.

    A database that does not answer, or is not opened yet, raises errors.Unavailable.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._is_open = False

    def open(self) -> None:
        """Say that the schema is as this program expects it."""
        self._is_open = True

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Commit at the block's end, roll back on an error."""
        if not self._is_open:
            raise Unavailable("the buffer is starting: the database is not ready yet")
        with map_database_errors():
            async with self._engine.begin() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def autocommit(self) -> AsyncIterator[AsyncConnection]:
        """Each statement is a transaction of its own: where it must be, is alone, or only reads.

        A transaction would see no more: each of its statements sees what is committed by then. Its
        COMMIT takes a way to the database and back.
        """
        if not self._is_open:
            raise Unavailable("the buffer is starting: the database is not ready yet")
        with map_database_errors():
            async with self._engine.connect() as connection:
                yield await connection.execution_options(isolation_level="AUTOCOMMIT")


@lru_cache(maxsize=1024)
def in_stage(table: sa.Table, key: StageKey) -> sa.ColumnElement[bool]:
    """Rows of one stage."""
    return sa.and_(
        table.c.tenant == key.tenant,
        table.c.experiment_id == key.experiment_id,
        table.c.stage == key.stage,
    )


def in_given_stage(table: sa.Table, whose: str = "given") -> sa.ColumnElement[bool]:
    """Rows of the stage that `given` names: for statements that are built once and run often."""
    return sa.and_(*(table.c[name] == sa.bindparam(f"{whose}_{name}") for name in STAGE_KEY))


def of_stage(table: sa.Table, key: StageKey) -> sa.ColumnElement[bool]:
    """Whether rows that are looked up by their ids are of this stage.

    Written so that no index serves it: Postgres would take a stage that is newer than its
    statistics for one of few rows, and read all of them to find those with the ids.
    """
    values = (sa.literal(value, table.c[name].type) for name, value in key_columns(key).items())
    return _place_of(table) == sa.func.concat_ws("/", *values)


def of_given_stage(table: sa.Table, whose: str = "given") -> sa.ColumnElement[bool]:
    """The same of the stage that `given` names."""
    return _place_of(table) == given_place(table, whose)


def given_place(table: sa.Table, whose: str = "given") -> sa.Function[str]:
    """The key, as one text, of the stage that `given` names; the columns have the table's types."""
    kinds = ((f"{whose}_{name}", table.c[name].type) for name in STAGE_KEY)
    return sa.func.concat_ws("/", *(sa.bindparam(name, type_=kind) for name, kind in kinds))


def _place_of(table: sa.Table) -> sa.Function[str]:
    return sa.func.concat_ws("/", *(table.c[name] for name in STAGE_KEY))


def given(key: StageKey, **values: object) -> dict[str, object]:
    """Parameters of a statement on a given stage."""
    return given_as("given", key) | values


def given_as(whose: str, key: StageKey) -> dict[str, object]:
    """The same of another stage that the statement is on, under a name of its own."""
    return {f"{whose}_{name}": value for name, value in key_columns(key).items()}


def among_given(column: sa.Column[str], name: str = "ids") -> sa.ColumnElement[bool]:
    """Rows with one of the ids in the parameter of this name."""
    return column == sa.any_(sa.bindparam(name, type_=UUIDS))


def among(column: sa.Column[str], ids: Iterable[str]) -> sa.ColumnElement[bool]:
    """Rows with one of these ids, as one parameter however many there are.

    Tables of a new experiment grow faster than the planner's statistics: a join of two of them
    may compare every row with every other. So statements look rows up by ids, one table at a time.
    """
    return column == sa.any_(sa.cast(list(ids), UUIDS))


def among_numbers(column: sa.Column[int], numbers: Iterable[int]) -> sa.ColumnElement[bool]:
    """Rows with one of these numbers."""
    return column == sa.any_(sa.cast(list(numbers), BIGINTS))


def one_of(column: sa.Column[str], states: Iterable[StrEnum]) -> sa.ColumnElement[bool]:
    """Rows in one of these states; spelt out, since partial indexes are chosen by it."""
    return column.in_([sa.literal_column(f"'{state.value}'") for state in states])


def key_columns(key: StageKey) -> dict[str, object]:
    """The stage's key as values to insert."""
    return {"tenant": key.tenant, "experiment_id": key.experiment_id, "stage": key.stage}


def key_from_row(row: sa.Row[Any]) -> StageKey:
    """The stage's key of a row that holds its three columns."""
    return StageKey(tenant=row.tenant, experiment_id=row.experiment_id, stage=row.stage)


async def insert_rows(
    connection: AsyncConnection,
    table: sa.Table,
    rows: Sequence[Row],
    *,
    ignore_existing: bool = False,
) -> None:
    """Insert many rows of the same columns in one statement; none is fine."""
    if not rows:
        return
    insert_these = insert_new_of if ignore_existing else insert_of
    await execute(connection, insert_these(table, tuple(rows[0])), {"rows": rows_as_json(rows)})


@lru_cache
def insert_of(table: sa.Table, names: tuple[str, ...]) -> Insert:
    """Insert the rows of the parameter `rows`, made by `rows_as_json`, in their order.

    Postgres reads JSON faster than the driver writes an array of every column.
    """
    columns = ", ".join(f'"{name}"' for name in names)
    chosen = sa.text(
        f"SELECT {columns} FROM json_populate_recordset(NULL::{table.name}, CAST(:rows AS json))"
    )
    return insert(table).from_select(names, chosen.columns(*(table.c[name] for name in names)))


@lru_cache
def insert_new_of(table: sa.Table, names: tuple[str, ...]) -> Insert:
    """The same of those that are not there."""
    return insert_of(table, names).on_conflict_do_nothing()


def rows_as_json(rows: Sequence[Row]) -> str:
    """Rows as one parameter."""
    try:
        return json.dumps(rows, default=_hex, allow_nan=False)
    except ValueError:  # numbers that JSON has no way to write; as texts Postgres knows them
        return json.dumps(
            [{name: _finite(one) for name, one in row.items()} for row in rows], default=_hex
        )


def _finite(value: object) -> object:
    is_odd = isinstance(value, float) and not math.isfinite(value)
    return str(value) if is_odd else value


def _hex(value: object) -> str:
    """The only kind of value that JSON does not know is bytes."""
    assert isinstance(value, bytes)
    return f"\\x{value.hex()}"


async def notify(connection: AsyncConnection, *topics: str) -> None:
    """Wake whoever waits for these topics, in any replica, when the transaction commits."""
    names = {f"topic_{place}": topic for place, topic in enumerate(topics)}
    await execute(connection, _notify(len(topics)), names)


@lru_cache
def _notify(num_topics: int) -> sa.Select[Any]:
    topics = (sa.bindparam(f"topic_{place}", type_=sa.Text) for place in range(num_topics))
    return sa.select(*(sa.func.pg_notify(CHANNEL, topic) for topic in topics))


def work_topic(key: StageKey) -> str:
    """Changes when more of a stage's work may be leased."""
    return f"work/{key.tenant}/{key.experiment_id}/{key.stage}"


def batch_topic(key: StageKey) -> str:
    """Changes when a stage's next batch may be composed, or is."""
    return f"batch/{key.tenant}/{key.experiment_id}/{key.stage}"


def stage_topics(key: StageKey) -> tuple[str, str]:
    """Both of them: something about the stage itself has changed."""
    return work_topic(key), batch_topic(key)


def tasksets_topic(tenant: str) -> str:
    """Changes when another taskset of a tenant is complete."""
    return f"tasksets/{tenant}"


def progress_topic(tenant: str, experiment_id: str) -> str:
    """Changes with every event of an experiment."""
    return f"progress/{tenant}/{experiment_id}"


def producer_topic(producer: str) -> str:
    """Changes when results of a producer are committed or rejected."""
    return f"producer/{producer}"


SCOPES_TOPIC = "scopes"
RETENTION_TOPIC = "retention"
"""Changes when old contents may have lost the last one who could need them."""


def encode_numbers(numbers: Mapping[str, float]) -> dict[str, float | str]:
    """For a JSON column, which has no way to write numbers that are not finite."""
    return {
        name.replace("\x00", ""): value if math.isfinite(value) else str(value)
        for name, value in numbers.items()
    }


def decode_numbers(stored: Mapping[str, float | str]) -> dict[str, float]:
    """What `encode_numbers` wrote."""
    return {name: float(value) for name, value in stored.items()}
