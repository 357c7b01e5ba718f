"""Makes a stage old: many copies of what it has stored, under other ids and later explore steps."""

import psycopg
from psycopg import sql

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
"""What the database numbers by itself."""


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
