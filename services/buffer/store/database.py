"""Transactions on the buffer's database, and the parts that its statements are built of."""

import contextlib
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from services.buffer.store.schema import NOW, STAGE_KEY
from trinity.errors import Unavailable
from trinity.runtime.postgres import map_database_errors
from trinity.runtime.sql import Connection, Row, transaction
from trinity.types import StageKey


class ArrayText(sa.types.UserDefinedType[Iterable[object]]):
    """An array of ids, numbers or booleans, some of which may be None; texts are not supported.

    It is sent as one text that the driver passes through unchanged. The driver would encode it
    element by element, 4 microseconds each: half of the cost of storing a set of results. Postgres
    parses the text of an array as fast as its binary form.
    """

    cache_ok = True
    render_bind_cast = True

    def __init__(self, element: str) -> None:
        self.element = element

    def get_col_spec(self, **_: Any) -> str:
        """Returns the type name that statements cast to."""
        return f"{self.element}[]"

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[Iterable[object] | None], Any]:
        """Returns the function that turns a value into the parameter."""
        del dialect
        return _array_text


def _array_text(values: Iterable[object] | None) -> str:
    assert values is not None, "an empty array is [], not None"
    return "{" + ",".join("NULL" if value is None else str(value) for value in values) + "}"


UUIDS = ArrayText("UUID")
INTEGERS = ArrayText("INTEGER")
BIGINTS = ArrayText("BIGINT")
FLOATS = ArrayText("FLOAT8")
BOOLEANS = ArrayText("BOOLEAN")


RowValues = Mapping[str, object]
"""A row to insert: its values by column."""
PREFIX = "key"
"""Prefix of the parameters that hold the key of a stage."""
CHANNEL = "buffer"


class BufferDatabase:
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
    async def transaction(self) -> AsyncIterator[Connection]:
        """Opens a transaction that commits when the block ends and rolls back on an error."""
        if not self._is_open:
            raise Unavailable("the buffer is starting: the database is not ready yet")
        with map_database_errors():
            async with transaction(self._engine) as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Connection]:
        """Opens a connection with autocommit: for single statements, and for blocks that only read.

        A transaction would not add consistency: under READ COMMITTED each statement sees what is
        committed by then. And its COMMIT takes a round trip.
        """
        if not self._is_open:
            raise Unavailable("the buffer is starting: the database is not ready yet")
        with map_database_errors():
            async with transaction(self._engine, None) as connection:
                yield connection


@lru_cache(maxsize=1024)
def in_stage(
    table: sa.Table, key: StageKey | None = None, *, prefix: str = PREFIX
) -> sa.ColumnElement[bool]:
    """Condition: rows of one stage; without a key, of the one that `stage_params` gives."""
    if key is None:
        return sa.and_(*(table.c[name] == sa.bindparam(f"{prefix}_{name}") for name in STAGE_KEY))
    return sa.and_(*(table.c[name] == value for name, value in key_columns(key).items()))


def of_stage(
    table: sa.Table, key: StageKey | None = None, *, prefix: str = PREFIX
) -> sa.ColumnElement[bool]:
    """Condition: the same, as a filter on rows that are looked up by their ids.

    Written so that no index can serve it. With an index, the planner would assume that a stage
    newer than its statistics has few rows, and scan all of them to find those with the ids.
    """
    own = sa.func.concat_ws("/", *(table.c[name] for name in STAGE_KEY))
    return own == stage_name(table, key, prefix=prefix)


def stage_name(
    table: sa.Table, key: StageKey | None = None, *, prefix: str = PREFIX
) -> sa.Function[str]:
    """The key of a stage as one text, with the types of the table's columns."""
    types = {name: table.c[name].type for name in STAGE_KEY}
    if key is None:
        params = (sa.bindparam(f"{prefix}_{name}", type_=kind) for name, kind in types.items())
        return sa.func.concat_ws("/", *params)
    values = (sa.literal(value, types[name]) for name, value in key_columns(key).items())
    return sa.func.concat_ws("/", *values)


def stage_params(key: StageKey, **values: object) -> dict[str, object]:
    """Returns the parameters of a statement on the rows of this stage, and further ones."""
    return prefixed_params(PREFIX, key) | values


def prefixed_params(prefix: str, key: StageKey) -> dict[str, object]:
    """Returns the parameters for a stage key under another prefix, for statements on two stages."""
    return {f"{prefix}_{name}": value for name, value in key_columns(key).items()}


def id_in(
    column: sa.Column[str], ids: Iterable[str] | None = None, *, name: str = "ids"
) -> sa.ColumnElement[bool]:
    """Condition: rows with one of these ids; without ids, of those in the parameter `name`.

    They are one array. Tables of a new experiment grow faster than the planner's statistics: a join
    of two of them may compare every row with every other. So statements look rows up by ids, one
    table at a time.
    """
    if ids is None:
        return column == sa.any_(sa.bindparam(name, type_=UUIDS))
    return column == sa.any_(sa.cast(list(ids), UUIDS))


def number_in(column: sa.Column[int], numbers: Iterable[int]) -> sa.ColumnElement[bool]:
    """Condition: rows with one of these numbers."""
    return column == sa.any_(sa.cast(list(numbers), BIGINTS))


def one_of(column: sa.Column[str], states: Iterable[StrEnum]) -> sa.ColumnElement[bool]:
    """Condition: rows in one of these states, as literals: partial indexes are matched by them."""
    return column.in_([sa.literal_column(f"'{state.value}'") for state in states])


def seconds_from_now(seconds: float | sa.BindParameter[float]) -> sa.ColumnElement[Any]:
    """The time so many seconds from now, by the database's clock."""
    return NOW + sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)


async def count_rows(
    connection: Connection, table: sa.Table, *conditions: sa.ColumnElement[bool]
) -> int:
    """Counts the rows for which all conditions hold."""
    statement = sa.select(sa.func.count()).select_from(table).where(*conditions)
    return int(await connection.fetch_value(statement))


def of_taskset(table: sa.Table, tenant: str, taskset_id: str) -> sa.ColumnElement[bool]:
    """Condition: rows of one taskset."""
    return sa.and_(table.c.tenant == tenant, table.c.taskset_id == taskset_id)


def key_columns(key: StageKey) -> dict[str, object]:
    """Returns the stage's key as values to insert."""
    return {"tenant": key.tenant, "experiment_id": key.experiment_id, "stage": key.stage}


def key_from_row(row: Row) -> StageKey:
    """Returns the stage's key from a row with its three columns."""
    return StageKey(tenant=row.tenant, experiment_id=row.experiment_id, stage=row.stage)


async def notify(connection: Connection, *topics: str) -> None:
    """Wakes waiters on these topics, in all replicas, when the transaction commits."""
    names = {f"topic_{place}": topic for place, topic in enumerate(topics)}
    await connection.execute(_notify(len(topics)), names)


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
