"""Statements on tasksets, their rows and their task pipelines."""

import uuid
from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from psycopg import sql

from services.buffer.domain.stage import StageState, TasksetKind
from services.buffer.store.database import (
    columns_of,
    id_in,
    in_stage,
    insert_new,
    insert_rows,
    of_taskset,
    one_of,
    value_of,
)
from services.buffer.store.media import release_media, taskset_user
from services.buffer.store.schema import (
    STAGE_KEY,
    stage,
    stage_taskset,
    task,
    task_feature,
    task_origin,
    taskset,
    taskset_upload,
)
from trinity.config.training_rows import SkippedRows
from trinity.runtime.sql import Connection, Row
from trinity.types import StageKey

_ESCAPES = {b"\\": rb"\\", b"\t": rb"\t", b"\r": rb"\r"}
WORD_BYTES = 8
SKIPPED = "`on_bad_row: skip`"
KEPT_KINDS = (TasksetKind.DATA, TasksetKind.EXPERT)
"""Tasksets whose rows are part of batches, which can be trained again."""
MAX_READ_BYTES = 1024 * 1024
"""Limit for rows that are read together; a single larger row is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taskset:
    """A taskset without its rows."""

    taskset_id: str
    is_complete: bool
    num_rows: int
    is_queue: bool = False
    """True if rows are added over time and drawn while more are still expected."""
    num_bytes: int = 0
    """Bytes of the rows that a client submitted."""


async def claim_source(connection: Connection, tenant: str, source: str) -> str | None:
    """Inserts a taskset for content of this identity; None if a complete one exists.

    Waits for another transaction that is reading the same content, without a timeout.
    """
    await connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
    taskset_id = str(uuid.uuid4())
    own = {"tenant": tenant, "taskset_id": taskset_id}
    values = {**own, "source": source, "is_complete": True}
    return taskset_id if await insert_new(connection, taskset, values) else None


async def copy_rows(
    connection: Connection,
    tenant: str,
    taskset_id: str,
    rows: AsyncIterator[bytes],
    *,
    first: int = 0,
) -> int:
    """Streams rows of a taskset, given as chunks of whole lines, from index `first` on.

    Returns the number of rows that the taskset has then.
    """
    count = first
    owner = _escaped(f"{tenant}\t{taskset_id}".encode(), b"\\")
    statement = sql.SQL("COPY task (tenant, taskset_id, index, body) FROM STDIN")
    async with connection.copy(statement) as copy:
        async for lines in rows:
            bodies = _escaped(lines, b"\\\t\r").split(b"\n")[:-1]
            numbered = enumerate(bodies, count)
            await copy.write(b"".join([b"%b\t%d\t%b\n" % (owner, i, body) for i, body in numbered]))
            count += len(bodies)
    await update_taskset(connection, tenant, taskset_id, num_rows=count)
    return count


def _escaped(text: bytes, characters: bytes) -> bytes:
    """Escapes characters for COPY, except line ends: rows do not contain any."""
    for character in (b"%c" % code for code in characters):
        text = text.replace(character, _ESCAPES[character])
    return text


async def update_taskset(
    connection: Connection, tenant: str, taskset_id: str, **values: int | bool
) -> None:
    """Updates columns of a taskset."""
    own = of_taskset(taskset, tenant, taskset_id)
    await connection.execute(sa.update(taskset).where(own).values(**values))


async def find_taskset(
    connection: Connection,
    tenant: str,
    *,
    name: str | None = None,
    source: str | None = None,
    for_update: bool = False,
) -> Taskset | None:
    """Returns a taskset by its client-given name, or by the identity of its content."""
    by_name = taskset.c.source == source if name is None else taskset.c.name == name
    statement = sa.select(taskset).where(taskset.c.tenant == tenant, by_name)
    if for_update:
        statement = statement.with_for_update()
    row = await connection.fetch_first(statement)
    return None if row is None else value_of(Taskset, row)


async def get_taskset(connection: Connection, tenant: str, taskset_id: str) -> Taskset:
    """Returns a taskset that exists."""
    statement = sa.select(taskset).where(of_taskset(taskset, tenant, taskset_id))
    return value_of(Taskset, await connection.fetch_one(statement))


async def hold_tasksets(connection: Connection, tenant: str, ids: Sequence[str]) -> set[str]:
    """Locks tasksets against deletion until the transaction ends; returns those that exist."""
    statement = (
        sa.select(taskset.c.taskset_id)
        .where(taskset.c.tenant == tenant, id_in(taskset.c.taskset_id, ids))
        .order_by(taskset.c.taskset_id)
        .with_for_update(read=True)
    )
    return set(await connection.fetch_column(statement))


async def insert_tasks(
    connection: Connection, tenant: str, taskset_id: str, first: int, bodies: Sequence[str]
) -> None:
    """Inserts rows from index `first` on."""
    rows = [
        {"tenant": tenant, "taskset_id": taskset_id, "index": first + i, "body": body}
        for i, body in enumerate(bodies)
    ]
    await insert_rows(connection, task, rows)


async def delete_tasks(connection: Connection, tenant: str, taskset_id: str) -> None:
    """Deletes all rows of a taskset, without a statement timeout."""
    await connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
    await connection.execute(sa.delete(task).where(of_taskset(task, tenant, taskset_id)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCounts:
    """Counts of rows that a task pipeline read and left out."""

    num_read: int
    left_out: dict[str, int]
    """Number of rows by reason."""
    ordered_by: dict[str, float]
    """The weights by which the rows were ordered; empty if the order is that of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePipeline:
    """The task pipeline's counts for a taskset of a stage, under its name in the stage."""

    taskset: str
    num_rows: int
    counts: PipelineCounts


async def insert_pipeline(
    connection: Connection, tenant: str, taskset_id: str, counts: PipelineCounts
) -> None:
    """Stores the counts of a task pipeline."""
    own = of_taskset(taskset, tenant, taskset_id)
    await connection.execute(sa.update(taskset).where(own).values(pipeline=columns_of(counts)))


async def insert_source_rows(
    connection: Connection, tenant: str, taskset_id: str, *, first: int, rows: bytes
) -> None:
    """Stores the source rows of the rows from `first` on, 8 bytes each."""
    values = {"tenant": tenant, "taskset_id": taskset_id, "first": first, "rows": rows}
    await connection.execute(sa.insert(task_origin).values(values))


async def source_rows_of(
    connection: Connection, tenant: str, taskset_id: str, *, first: int, count: int
) -> list[int]:
    """Returns the source rows of `count` rows from `first` on; empty without a task pipeline."""
    begin, size = task_origin.c.first, sa.func.octet_length(task_origin.c.rows) / WORD_BYTES
    least = sa.func.greatest(first - begin, 0)
    part = sa.func.substring(
        task_origin.c.rows,
        sa.cast(least * WORD_BYTES + 1, sa.Integer),
        sa.cast((first + count - begin - least) * WORD_BYTES, sa.Integer),
    )
    statement = (
        sa.select(part)
        .where(
            of_taskset(task_origin, tenant, taskset_id), begin < first + count, begin + size > first
        )
        .order_by(begin)
    )
    return array("q", b"".join(await connection.fetch_column(statement))).tolist()


async def stage_pipelines(connection: Connection, key: StageKey) -> list[StagePipeline]:
    """Returns the task pipelines of a stage's tasksets."""
    same = sa.and_(
        taskset.c.tenant == stage_taskset.c.tenant,
        taskset.c.taskset_id == stage_taskset.c.taskset_id,
    )
    statement = (
        sa.select(stage_taskset.c.name, taskset.c.num_rows, taskset.c.pipeline)
        .join_from(stage_taskset, taskset, same)
        .where(in_stage(stage_taskset, key), taskset.c.pipeline.is_not(None))
        .order_by(stage_taskset.c.name)
    )
    return [
        StagePipeline(
            taskset=row.name, num_rows=row.num_rows, counts=PipelineCounts(**row.pipeline)
        )
        for row in await connection.fetch(statement)
    ]


def skipped_counts(num_rows: int, skipped: Sequence[SkippedRows]) -> PipelineCounts:
    """Returns the counts of rows that were left out while they were read."""
    count = sum(some.count for some in skipped)
    reason = f"{SKIPPED}, first {skipped[0].first_errors[0]}"
    return PipelineCounts(num_read=num_rows + count, left_out={reason: count}, ordered_by={})


def empty_pipeline_error(counts: PipelineCounts) -> str:
    """Explains why a taskset is empty, as the end of a sentence."""
    reasons = sorted(counts.left_out.items(), key=lambda item: -item[1])
    listed = "; ".join(f"{count:,} by {reason}" for reason, count in reasons)
    cause = "reading" if listed.partition(" by ")[2].startswith(SKIPPED) else "task_pipeline"
    return f"{cause} leaves none of its {counts.num_read:,} rows: {listed}"


async def counts_of(connection: Connection, tenant: str, taskset_id: str) -> PipelineCounts | None:
    """Returns the counts of a taskset; None without a task pipeline."""
    statement = sa.select(taskset.c.pipeline).where(of_taskset(taskset, tenant, taskset_id))
    found = await connection.fetch_value(statement)
    return None if found is None else PipelineCounts(**found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksetDescription:
    """A taskset with the numbers that its description shows."""

    taskset_id: str
    name: str
    source: str
    is_complete: bool
    is_queue: bool
    num_rows: int
    num_refused: int
    num_stages: int
    created_at: datetime
    pipeline: PipelineCounts | None = None
    """Rows that a task pipeline left out; None without a task pipeline."""


def _described(tenant: str) -> sa.Select[Any]:
    refused = (
        sa.select(sa.func.coalesce(sa.func.sum(taskset_upload.c.num_refused), 0))
        .where(
            taskset_upload.c.tenant == tenant, taskset_upload.c.taskset_id == taskset.c.taskset_id
        )
        .scalar_subquery()
    )
    stages = (
        sa.select(sa.func.count())
        .select_from(stage_taskset)
        .where(stage_taskset.c.tenant == tenant, stage_taskset.c.taskset_id == taskset.c.taskset_id)
        .scalar_subquery()
    )
    chosen = sa.select(taskset, refused.label("num_refused"), stages.label("num_stages"))
    return chosen.where(taskset.c.tenant == tenant)


def _from_row(row: Row) -> TasksetDescription:
    return value_of(
        TasksetDescription,
        row,
        name=row.name or "",
        source=row.source or "",
        num_refused=int(row.num_refused),
        pipeline=PipelineCounts(**row.pipeline) if row.pipeline else None,
    )


async def list_tasksets(
    connection: Connection, tenant: str, *, limit: int, offset: int
) -> list[TasksetDescription]:
    """Returns tasksets of a tenant, newest first."""
    order = (taskset.c.created_at.desc(), taskset.c.taskset_id)
    statement = _described(tenant).order_by(*order).limit(limit).offset(offset)
    return [_from_row(row) for row in await connection.fetch(statement)]


async def find_described(
    connection: Connection, tenant: str, name_or_id: str, *, for_update: bool = False
) -> TasksetDescription | None:
    """Returns a taskset by its name or UUID."""
    wanted = taskset.c.name == name_or_id
    if (own_id := _uuid(name_or_id)) is not None:
        wanted = sa.or_(wanted, taskset.c.taskset_id == own_id)
    statement = _described(tenant).where(wanted)
    if for_update:
        statement = statement.with_for_update(of=taskset)
    row = await connection.fetch_first(statement)
    return None if row is None else _from_row(row)


def _uuid(text: str) -> str | None:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


async def load_row_bodies(
    connection: Connection, tenant: str, taskset_id: str, *, first: int, count: int
) -> Sequence[str]:
    """Returns at most `count` rows in order, within `MAX_READ_BYTES` but at least one."""
    num_bytes = sa.func.sum(sa.func.octet_length(task.c.body)).over(order_by=task.c.index)
    sized = (
        sa.select(task.c.index, task.c.body, num_bytes.label("num_bytes"))
        .where(
            of_taskset(task, tenant, taskset_id),
            task.c.index >= first,
            task.c.index < first + count,
        )
        .subquery("sized")
    )
    statement = (
        sa.select(sized.c.body)
        .where(sa.or_(sized.c.num_bytes <= MAX_READ_BYTES, sized.c["index"] == first))
        .order_by(sized.c["index"])
    )
    return await connection.fetch_column(statement)


async def find_need(connection: Connection, tenant: str, taskset_id: str) -> str:
    """Names a stage that still needs a taskset, as the end of a sentence; empty without one."""
    same = sa.and_(*(stage.c[name] == stage_taskset.c[name] for name in STAGE_KEY))
    is_unfinished = stage.c.state != StageState.FINISHED
    is_kept = one_of(stage_taskset.c.kind, KEPT_KINDS)
    statement = (
        sa.select(stage.c.stage, stage.c.experiment_id, stage.c.state)
        .join_from(stage_taskset, stage, same)
        .where(of_taskset(stage_taskset, tenant, taskset_id), sa.or_(is_unfinished, is_kept))
        .limit(1)
    )
    row = await connection.fetch_first(statement)
    if row is None:
        return ""
    why = "has its rows in batches" if row.state == StageState.FINISHED else f"is {row.state}"
    return f"stage {row.stage} of experiment {row.experiment_id} {why}"


async def delete_taskset(connection: Connection, tenant: str, taskset_id: str) -> None:
    """Deletes a taskset and everything that belongs to it."""
    await delete_tasks(connection, tenant, taskset_id)
    await release_media(connection, taskset_user(taskset_id))
    for table in (task_feature, task_origin, taskset_upload):
        await connection.execute(sa.delete(table).where(of_taskset(table, tenant, taskset_id)))
    await connection.execute(sa.delete(taskset).where(of_taskset(taskset, tenant, taskset_id)))
