"""Runs statements of SQLAlchemy Core with psycopg, in as few round trips as possible.

A statement is compiled once per structure, wherever it was built; the driver prepares it at its
sixth use. Rows are named tuples. `execute` queues: queued statements run, in their order, with the
next fetch or with the COMMIT. BEGIN goes with the first statement.

    async with transaction(engine) as connection:
        stage = await connection.fetch_one(FIND_STAGE, stage_params(key))  # BEGIN, SELECT: 1 trip
        await connection.execute(ADD_STEP, stage_params(key, step=stage.step + 1))
        await notify(connection, topic)  # both with COMMIT: 1 trip

Invariant: between round trips a transaction's session is idle for Postgres, so that its timeout for
silent transactions runs (docs/decisions/0055-one-way-to-talk-to-postgres.md). A round trip
therefore ends with a Sync, never with the Flush of the driver's own pipeline block, and statements
wait here, not in the session. The driver's pipeline block is left only with the COMMIT, and for
COPY, which breaks the invariant until its first message.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString
from weakref import WeakKeyDictionary

import psycopg
import sqlalchemy as sa
from psycopg import sql
from psycopg.pq import PipelineStatus
from psycopg.rows import namedtuple_row
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.cache_key import CacheKey
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.util import LRUCache, greenlet_spawn

Statement = sa.ClauseElement
Params = Mapping[str, object]
Query = tuple[Statement, Params]
Row = Any
"""A named tuple, whose columns are attributes; ids are texts."""
MAX_QUEUED = 100
"""So many queued statements are sent without waiting for a fetch or the COMMIT."""
READ_WRITE: LiteralString = "BEGIN"
READ_ONLY: LiteralString = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_DIALECT = sa.make_url("postgresql+psycopg_async://").get_dialect()()
_NO_PARAMS: Params = {}
_SAVEPOINT = sa.text("SAVEPOINT block")
_RELEASE = sa.text("RELEASE SAVEPOINT block")
_ROLL_BACK_TO = sa.text("ROLLBACK TO SAVEPOINT block")


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A statement's text for the driver; statements of the same structure share it."""

    text: bytes
    literals: Mapping[str, int]
    """Parameters whose values are part of the statement, with their places in its cache key."""
    processors: Mapping[str, Callable[[Any], object]]
    """Conversions of parameters that the driver needs in another form."""


_by_structure: LRUCache[Any, _Compiled] = LRUCache(2000)
_by_statement: WeakKeyDictionary[Statement, tuple[_Compiled, Params]] = WeakKeyDictionary()
"""Statements that live on, as constants of a module do, with the values of their literals."""


def bind(statement: Statement, params: Params = _NO_PARAMS) -> tuple[bytes, dict[str, Any]]:
    """Returns the text of a statement, and its parameters with the literals in it."""
    if (known := _by_statement.get(statement)) is None:
        known = _by_statement[statement] = _look_up(statement)
    compiled, literals = known
    assert literals.keys().isdisjoint(params), "a parameter has the name of a literal"
    values = {**literals, **params}
    for name, process in compiled.processors.items():
        values[name] = process(values[name])
    return compiled.text, values


def text_of(statement: Statement) -> bytes:
    """Returns the text of a statement, whatever its parameters are."""
    return _look_up(statement)[0].text


def _look_up(statement: Statement) -> tuple[_Compiled, Params]:
    # A method with an underscore, the one use of SQLAlchemy's insides: its key of a statement's
    # structure. SQLAlchemy 2.0 and 2.1 have it; with another version
    # tests/unit/runtime/test_library_internals.py fails. Without it, statements that are built
    # where they stand would be compiled at each call.
    key = statement._generate_cache_key()
    assert key is not None, "the statement has a type or an element without `cache_ok`"
    if (compiled := _by_structure.get(key.key)) is None:
        compiled = _by_structure[key.key] = _compile(statement, key)
    literals = {
        name: key.bindparams[place].effective_value for name, place in compiled.literals.items()
    }
    return compiled, literals


def _compile(statement: Statement, key: CacheKey) -> _Compiled:
    compiler = statement.compile(dialect=_DIALECT, cache_key=key)
    assert isinstance(compiler, SQLCompiler)
    assert not compiler.post_compile_params, "use any_(array) instead of in_(list)"
    names = compiler.bind_names
    places = {bound.key: place for place, bound in enumerate(key.bindparams)}
    literals = {name: places[bound.key] for bound, name in names.items() if not bound.required}
    processors = {
        name: process
        for bound, name in names.items()
        if (process := bound.type.dialect_impl(_DIALECT).bind_processor(_DIALECT)) is not None
    }
    return _Compiled(str(compiler).encode(), literals, processors)


class Connection:
    """A transaction, or a connection with autocommit; for one task.

    A queued statement's error is raised by the next fetch, `flush` or the COMMIT.
    """

    def __init__(self, driver: psycopg.AsyncConnection[Any], begin: LiteralString | None) -> None:
        """Takes the driver's connection in autocommit mode, and the BEGIN; None: autocommit."""
        self._driver = driver
        self._begin = begin
        self._is_autocommit = begin is None
        self._queued: list[Query] = []
        self._pipeline: psycopg.AsyncPipeline | None = None
        self._pipeline_block = contextlib.AsyncExitStack()

    async def fetch(self, statement: Statement, params: Params = _NO_PARAMS) -> list[Row]:
        """Returns all rows of a statement."""
        (rows,) = await self.fetch_together((statement, params))
        return rows

    async def fetch_first(self, statement: Statement, params: Params = _NO_PARAMS) -> Row | None:
        """Returns the first row; None without one."""
        rows = await self.fetch(statement, params)
        return rows[0] if rows else None

    async def fetch_one(self, statement: Statement, params: Params = _NO_PARAMS) -> Row:
        """Returns the only row."""
        (row,) = await self.fetch(statement, params)
        return row

    async def fetch_value(self, statement: Statement, params: Params = _NO_PARAMS) -> Any:
        """Returns the first value of the first row; None without one."""
        row = await self.fetch_first(statement, params)
        return None if row is None else row[0]

    async def fetch_column(self, statement: Statement, params: Params = _NO_PARAMS) -> list[Any]:
        """Returns the first value of each row."""
        return [row[0] for row in await self.fetch(statement, params)]

    async def fetch_together(self, *queries: Query) -> list[list[Row]]:
        """Runs statements one after another in one round trip; returns the rows of each."""
        cursors = [self._driver.cursor(row_factory=namedtuple_row) for _ in queries]
        await self._run(list(zip(cursors, queries, strict=True)))
        return [await cursor.fetchall() for cursor in cursors]

    async def fetch_binary(
        self, statement: Statement, params: Params = _NO_PARAMS
    ) -> list[tuple[Any, ...]]:
        """Returns rows that come in binary form, for large bytes; ids are `uuid.UUID`."""
        cursor = self._driver.cursor(binary=True)
        await self._run([(cursor, (statement, params))])
        return await cursor.fetchall()

    async def execute(self, statement: Statement, params: Params = _NO_PARAMS) -> None:
        """Queues a statement whose rows are not read; with autocommit it runs at once."""
        self._queued.append((statement, params))
        if self._is_autocommit or len(self._queued) >= MAX_QUEUED:
            await self.flush()

    async def flush(self) -> None:
        """Runs queued statements and raises their errors."""
        if self._queued:
            await self._run([])

    @contextlib.asynccontextmanager
    async def copy(self, statement: sql.SQL | sql.Composed) -> AsyncIterator[psycopg.AsyncCopy]:
        """Opens a COPY, after queued statements; pipeline mode is left for it."""
        if not self._is_autocommit:
            await self._enter_pipeline()
            await self._send()
            await self._leave_pipeline()
        async with self._driver.cursor() as cursor, cursor.copy(statement) as copy:
            yield copy

    @contextlib.asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Rolls back to here on an error of the block, queued statements included, and raises it.

        The transaction can go on after the error.
        """
        assert not self._is_autocommit
        await self.execute(_SAVEPOINT)
        await self.flush()
        try:
            yield
            await self.execute(_RELEASE)
            await self.flush()
        except Exception:
            self._queued.clear()
            pipeline = await self._enter_pipeline()
            with contextlib.suppress(psycopg.Error):  # left behind by the failed statement
                await pipeline.sync()
            await self.execute(_ROLL_BACK_TO)
            await self.flush()
            raise

    async def commit(self) -> None:
        """Runs queued statements and COMMIT; `transaction` calls it at the end of its block."""
        if self._is_autocommit or (self._begin is not None and not self._queued):
            return
        await self._enter_pipeline()
        await self._send()
        await self._driver.execute("COMMIT", prepare=False)
        await self._leave_pipeline()

    async def roll_back(self) -> None:
        """Drops queued statements and ends the transaction; `transaction` calls it on an error."""
        self._queued.clear()
        try:
            await self._driver.rollback()
        finally:
            await self._leave_pipeline()

    async def _run(self, asked: Sequence[tuple[psycopg.AsyncCursor[Any], Query]]) -> None:
        """Runs the queued statements and these in one round trip."""
        if self._is_autocommit:
            async with contextlib.AsyncExitStack() as together:
                if len(asked) + len(self._queued) > 1:
                    await together.enter_async_context(self._driver.pipeline())
                await self._send(asked)
            return
        pipeline = await self._enter_pipeline()
        await self._send(asked)
        await pipeline.sync()

    async def _send(self, asked: Sequence[tuple[psycopg.AsyncCursor[Any], Query]] = ()) -> None:
        """Sends the queued statements, then these."""
        cursor, queued, self._queued = self._driver.cursor(), self._queued, []
        for own, (statement, params) in [*((cursor, query) for query in queued), *asked]:
            await own.execute(*bind(statement, params))

    async def _enter_pipeline(self) -> psycopg.AsyncPipeline:
        """Enters pipeline mode, with BEGIN as the first statement of the transaction."""
        if self._pipeline is None:
            block = self._driver.pipeline()
            self._pipeline = await self._pipeline_block.enter_async_context(block)
        if self._begin is not None:
            begin, self._begin = self._begin, None
            await self._driver.execute(begin, prepare=False)
        return self._pipeline

    async def _leave_pipeline(self) -> None:
        self._pipeline = None
        await self._pipeline_block.aclose()


@contextlib.asynccontextmanager
async def transaction(
    engine: AsyncEngine, begin: LiteralString | None = READ_WRITE
) -> AsyncIterator[Connection]:
    """Opens a transaction that commits when the block ends and rolls back on an error.

    `begin` is READ_WRITE, READ_ONLY (all statements see one snapshot), or None for autocommit. The
    engine is that of `trinity.runtime.postgres.async_engine`, whose connections are in autocommit
    mode.
    """
    pooled = await engine.raw_connection()
    is_usable = False
    try:
        driver = pooled.driver_connection
        assert isinstance(driver, psycopg.AsyncConnection)
        assert driver.autocommit, "the module sends BEGIN itself"
        connection = Connection(driver, begin)
        try:
            yield connection
            await connection.commit()
            is_usable = True
        except BaseException:
            with contextlib.suppress(psycopg.Error):  # the session is gone
                await connection.roll_back()
                # A user cancelled on its way into the driver's pipeline cannot leave it.
                is_usable = driver.pgconn.pipeline_status == PipelineStatus.OFF
            raise
    finally:
        await greenlet_spawn(pooled.close if is_usable else pooled.invalidate)
