"""The cost of a stage's age: rates with a million stored rows over those with ten thousand.

An old stage and a young one stand side by side, each with a database, a broker and a buffer of its
own, filled once. They take turns, run after run: whatever else the machine does meets both, and the
ratio of a run is that of two parts which followed each other. Each part adds its rows to the young
stage too, so that the fifth finds 51,200 in it. The bare processes have tables of the same size.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psycopg
from psycopg import sql

from benchmarks.buffer import limits
from benchmarks.buffer.made import num_tokens_of
from benchmarks.buffer.plans import BATCH_ROWS, rollout_plan
from benchmarks.buffer.sizes import Sizes
from benchmarks.buffer.stack import Stack, running_stack
from trinity.types import StageKey

SEGMENT_ROWS = 65_536
IN_STAGE = "tenant = %(tenant)s AND experiment_id = %(experiment_id)s AND stage = %(stage)s"
NEW_IDS = ("assignment_id", "experience_id", "parent_id", "payload_id", "producer")
LATER = ("explore_step", "step", "batched_step")
"""Numbers of steps; `step` is that of a train step in the tables of batches alone."""
TABLES = (
    "assignment",
    "run",
    "run_attempt",
    "experience",
    "payload",
    "pipeline_scope",
    "batch",
    "batch_item",
)
LOCK = (
    "SELECT pg_advisory_xact_lock(hashtextextended("
    "concat_ws('/', 'stage', %(tenant)s::text, %(experiment_id)s::uuid, %(stage)s::text), 0))"
)
"""As the buffer locks a stage for itself alone."""
GIVEN = ("ready_number",)
"""Columns that the database fills with numbers of its own."""


async def grow(dsn: str, key: StageKey, copies: int) -> int:
    """Answers how many samples there are then."""
    values: dict[str, object] = {"tenant": key.tenant, "experiment_id": key.experiment_id}
    values["stage"] = key.stage
    options = "-c search_path=buffer -c synchronous_commit=off"
    async with await psycopg.AsyncConnection.connect(dsn, options=options) as connection:
        await connection.execute(LOCK, values)
        steps = await _number(
            connection, f"SELECT explore_step FROM stage WHERE {IN_STAGE}", values
        )
        rows = await _number(connection, f"SELECT count(*) FROM payload WHERE {IN_STAGE}", values)
        segments = await _segments(connection, values, rows, copies)
        for table in TABLES:
            await _copy(connection, table, values | {"copies": copies, "steps": steps}, segments)
        await connection.execute(
            f"UPDATE stage SET explore_step = explore_step * %(times)s,"
            f" recorded_step = recorded_step * %(times)s, num_drawn = num_drawn * %(times)s"
            f" WHERE {IN_STAGE}",
            values | {"times": copies + 1},
        )
        stored = await _number(connection, f"SELECT count(*) FROM payload WHERE {IN_STAGE}", values)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        for table in TABLES:
            await connection.execute(f"VACUUM ANALYZE buffer.{table}")
    return stored


async def _segments(
    connection: psycopg.AsyncConnection, values: dict[str, object], rows: int, copies: int
) -> list[int]:
    """A partition for each copy, shared by as many as it has room for."""
    per_segment = max(1, SEGMENT_ROWS // max(rows, 1))
    segments: list[int] = []
    for copy in range(copies):
        if copy % per_segment == 0:
            segment = await _number(
                connection,
                "INSERT INTO segment (tenant, experiment_id, stage)"
                " VALUES (%(tenant)s, %(experiment_id)s, %(stage)s) RETURNING segment_id",
                values,
            )
            await connection.execute(f"CREATE TABLE payload_{segment} (LIKE payload INCLUDING ALL)")
            await connection.execute(
                f"ALTER TABLE payload ATTACH PARTITION payload_{segment} FOR VALUES IN ({segment})"
            )
        segments.append(segment)
    return segments


async def _copy(
    connection: psycopg.AsyncConnection,
    table: str,
    values: dict[str, object],
    segments: list[int],
) -> None:
    names = await connection.execute(
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = 'buffer' AND table_name = %s AND is_generated = 'NEVER'",
        [table],
    )
    columns = [name for (name,) in await names.fetchall() if name not in GIVEN]
    chosen = sql.SQL(", ").join(sql.SQL(_expression(table, name)) for name in columns)
    statement = sql.SQL(
        "INSERT INTO {} ({}) SELECT {} FROM {}, generate_series(1, {}) AS copy WHERE {}"
    )
    await connection.execute(
        statement.format(
            sql.Identifier(table),
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            chosen,
            sql.Identifier(table),
            sql.Placeholder("copies"),
            sql.SQL(IN_STAGE),
        ),
        values | {"segments": segments},
    )


def _expression(table: str, column: str) -> str:
    if column in NEW_IDS:
        return f"md5({column}::text || copy)::uuid"
    if column == "segment_id":
        return "(%(segments)s::bigint[])[copy]"
    is_place = column == "step" and not table.startswith("batch")
    if column in LATER and not is_place:
        return f"{column} + copy * %(steps)s"
    return column


async def _number(
    connection: psycopg.AsyncConnection, statement: str, values: dict[str, object]
) -> int:
    row = await (await connection.execute(statement, values)).fetchone()
    assert row is not None
    return int(row[0])


NUM_BYTES = 2 * 1024
Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Seconds of a stage's next rows: to publish, to compose and read, to read again."""

    stored: int
    """Before it."""
    rate: float
    take_seconds: float
    read_seconds: float


@dataclass(slots=True, kw_only=True)
class _Side:
    """A stage of some age, and a table of the bare processes as large."""

    stack: Stack
    raw: limits.WorkerPair
    key: dict[str, str]
    steps: int
    """In a part."""
    done: int = 0
    """Steps that were taken, or copied."""

    @property
    def stored(self) -> int:
        return self.done * BATCH_ROWS

    async def part(self) -> _Part:
        """The trainer takes the steps, so that the next ones may begin."""
        first, stored, rows = self.done, self.stored, self.steps * BATCH_ROWS
        explorer, trainer = self.stack.explorer, self.stack.trainer
        await trainer.call("record", version=first)
        tokens = num_tokens_of(NUM_BYTES)
        await explorer.call("lease", key=self.key, rows=rows, num_tokens=tokens)
        seconds = await explorer.number("publish", count=rows, batch=BATCH_ROWS)
        self.done += self.steps
        take = await trainer.numbers("read", first=first + 1, last=self.done)
        read = await trainer.numbers("read", first=first + 1, last=self.done)
        return _Part(
            stored=stored,
            rate=rows / seconds,
            take_seconds=median(take),
            read_seconds=median(read),
        )

    async def age(self, copies: int) -> None:
        """Store all that is there so many times more."""
        rows = await grow(self.stack.admin_dsn, StageKey(**self.key), copies)
        self.done *= copies + 1
        assert rows == self.stored


async def measure(
    folder: Path, sizes: Sizes, num_runs: int
) -> AsyncIterator[tuple[Figures, Figures]]:
    """Our figures and the raw ones of each run."""
    async with (
        _filled(folder / "few", sizes, num_runs, copies=0) as few,
        _filled(folder / "many", sizes, num_runs, copies=sizes.copies) as many,
    ):
        for _ in range(num_runs):
            raw_few, own_few = await _raw_part(few, sizes), await few.part()
            raw_many, own_many = await _raw_part(many, sizes), await many.part()
            yield _ratios(own_few, own_many), _raw_ratios(raw_few, raw_many)


@asynccontextmanager
async def _filled(
    folder: Path, sizes: Sizes, num_runs: int, *, copies: int
) -> AsyncIterator[_Side]:
    """A stage that has had its first part; if it is old, one more, which warms what it grew to."""
    await asyncio.to_thread(folder.mkdir)
    steps = sizes.few_steps
    plan = rollout_plan(folder, num_steps=steps * (copies + num_runs + 3), steps_ahead=steps)
    async with running_stack(folder) as stack, limits.processes(stack) as raw:
        side = _Side(stack=stack, raw=raw, key=await stack.open(plan), steps=steps)
        await side.part()
        if copies:
            await side.age(copies)
            await side.part()
        await raw.store.call("fill", size=NUM_BYTES, rows=side.stored)
        await _settle(stack)
        yield side


async def _settle(stack: Stack) -> None:
    """Or the database would write what filled it while it is measured."""
    async with await psycopg.AsyncConnection.connect(stack.admin_dsn, autocommit=True) as own:
        await own.execute("VACUUM ANALYZE")
        await own.execute("CHECKPOINT")


def _ratios(few: _Part, many: _Part) -> Figures:
    return {
        "growth": many.rate / few.rate,
        "growth_read": few.read_seconds / many.read_seconds,
        "growth_take": few.take_seconds / many.take_seconds,
        "few_stored": few.stored,
        "many_stored": many.stored,
        "few_rate": few.rate,
        "many_rate": many.rate,
        "few_read_ms": 1000 * few.read_seconds,
        "many_read_ms": 1000 * many.read_seconds,
    }


async def _raw_part(side: _Side, sizes: Sizes) -> tuple[float, float]:
    """Rows a second that are published and stored, and the seconds of a batch read by id."""
    count = sizes.small_steps * BATCH_ROWS
    rate = await limits.rate(side.raw, NUM_BYTES, count, fresh=False)
    return rate, median(await side.raw.store.numbers("read", batch=BATCH_ROWS))


def _raw_ratios(few: tuple[float, float], many: tuple[float, float]) -> Figures:
    return {"growth": many[0] / few[0], "growth_read": few[1] / many[1]}
