"""Transactions on the buffer's database, and the parts that its statements are built of."""

import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from psycopg import sql
from psycopg.types.json import Jsonb
from sqlalchemy.dialects.postgresql import JSONB, Insert, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from services.buffer.domain.stage import Stage
from services.buffer.store.schema import NOW, STAGE_KEY
from trinity.errors import NotReady
from trinity.runtime.postgres import map_database_errors
from trinity.runtime.sql import Connection, Row, transaction
from trinity.types import StageKey

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ValueT = TypeVar("ValueT", bound="DataclassInstance")
RowValues = Mapping[str, object]
"""A row to insert: its values by column."""
PREFIX = "key"
"""Prefix of the parameters that hold the key of a stage."""
CHANNEL = "buffer"
SCOPES_TOPIC = "scopes"
RETENTION_TOPIC = "retention"
"""Topic: old contents may not be needed any more."""
MAX_JSON_ROWS = 64
"""More rows are streamed with COPY, which needs extra round trips: JSON is queued."""
MAX_SINGLE_BODIES = 8
"""So many rows with large bytes are inserted one by one; as JSON they would be twice as large."""
Adapter = Callable[[object], object]
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


UUIDS = ArrayText("UUID")
INTEGERS = ArrayText("INTEGER")
BIGINTS = ArrayText("BIGINT")
FLOATS = ArrayText("FLOAT8")
BOOLEANS = ArrayText("BOOLEAN")


def _array_text(values: Iterable[object] | None) -> str:
    assert values is not None, "an empty array is [], not None"
    return "{" + ",".join("NULL" if value is None else str(value) for value in values) + "}"


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
            raise NotReady("the buffer is starting: the database is not ready yet")
        with map_database_errors():
            async with transaction(self._engine) as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Connection]:
        """Opens a connection with autocommit: for single statements, and for blocks that only read.

        A transaction would not add consistency: under READ COMMITTED each statement sees all
        earlier commits. And its COMMIT takes a round trip.
        """
        if not self._is_open:
            raise NotReady("the buffer is starting: the database is not ready yet")
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


def of_line(table: sa.Table, stage: Stage, step: int | None = None) -> sa.ColumnElement[bool]:
    """Condition: rows of the stage's line, or of one train step on it."""
    own = sa.and_(in_stage(table, stage.key), table.c.line == stage.line)
    return own if step is None else sa.and_(own, table.c.step == step)


def of_taskset(table: sa.Table, tenant: str, taskset_id: str) -> sa.ColumnElement[bool]:
    """Condition: rows of one taskset."""
    return sa.and_(table.c.tenant == tenant, table.c.taskset_id == taskset_id)


def key_columns(key: StageKey) -> dict[str, object]:
    """Returns the stage's key as values to insert."""
    return {"tenant": key.tenant, "experiment_id": key.experiment_id, "stage": key.stage}


def key_from_row(row: Row) -> StageKey:
    """Returns the stage's key from a row with its three columns."""
    return StageKey(tenant=row.tenant, experiment_id=row.experiment_id, stage=row.stage)


def value_of(kind: type[ValueT], row: Row, /, **others: object) -> ValueT:
    """Returns a value whose fields are columns of the row with the same names, or `others`."""
    return kind(**{name: getattr(row, name) for name in _shared(kind, row.__class__)} | others)


@lru_cache(maxsize=256)
def _shared(kind: "type[DataclassInstance]", row_type: Any) -> tuple[str, ...]:
    return tuple(name for name in kind.__dataclass_fields__ if name in row_type._fields)


def columns_of(value: "DataclassInstance") -> dict[str, Any]:
    """Returns the fields of a value as columns to insert."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


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


def encode_numbers(numbers: Mapping[str, float]) -> dict[str, float | str]:
    """Prepares numbers for a JSON column: numbers that are not finite become texts."""
    return {
        name.replace("\x00", ""): value if math.isfinite(value) else str(value)
        for name, value in numbers.items()
    }


def decode_numbers(stored: Mapping[str, float | str]) -> dict[str, float]:
    """Reverses `encode_numbers`."""
    return {name: float(value) for name, value in stored.items()}


@lru_cache(maxsize=8192)
def _bytes_of(uuid_text: object) -> object:
    """Returns the bytes of an id as they are sent; the driver would build a UUID object first."""
    return None if uuid_text is None else bytes.fromhex(str(uuid_text).replace("-", ""))


def _json_of(value: object) -> object:
    return None if value is None else Jsonb(value)


_ADAPTERS: dict[type[object], Adapter] = {sa.Uuid: _bytes_of, JSONB: _json_of}


async def insert_rows(
    connection: Connection,
    table: sa.Table,
    rows: Sequence[RowValues],
    *,
    ignore_existing: bool = False,
) -> None:
    """Inserts rows with the same columns, in order; `rows` may be empty."""
    if not rows:
        return
    if len(rows) > MAX_JSON_ROWS and not ignore_existing:
        await _copy(connection, table, rows)
        return
    statement = (_insert_new_json if ignore_existing else _insert_json)(table, tuple(rows[0]))
    await connection.execute(statement, {"rows": _as_json(rows)})


async def insert_new(connection: Connection, table: sa.Table, values: RowValues) -> bool:
    """Inserts a row; returns False if there is one with its key."""
    statement = insert(table).values(values).on_conflict_do_nothing()
    return await connection.fetch_first(statement.returning(sa.literal_column("1"))) is not None


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
