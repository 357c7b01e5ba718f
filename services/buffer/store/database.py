"""Array parameters, sent as one text that the driver passes through unchanged.

The driver encodes an array element by element, 4 microseconds each: half of the cost of storing a
set of results. Postgres parses the text of an array as fast as its binary form.
"""

import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import namedtuple_row
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql.compiler import SQLCompiler

from services.buffer.store.schema import STAGE_KEY
from trinity.errors import Unavailable
from trinity.runtime.postgres import map_database_errors
from trinity.types import StageKey


class ArrayText(sa.types.UserDefinedType[Iterable[object]]):
    """An array of ids, numbers or booleans, some of which may be None; texts are not supported."""

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
    rows: Sequence[Values],
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


def rows_as_json(rows: Sequence[Values]) -> str:
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
