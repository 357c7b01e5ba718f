"""Statements on the results of task pipelines on the rows of tasksets."""

from array import array
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.store.database import in_stage
from services.buffer.store.tables import stage_taskset, task_origin, taskset
from services.buffer.store.tasks import own_taskset
from trinity.types import StageKey

WORD_BYTES = 8


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
    connection: AsyncConnection, tenant: str, taskset_id: str, counts: PipelineCounts
) -> None:
    """Stores the counts of a task pipeline."""
    values = {
        "num_read": counts.num_read,
        "left_out": counts.left_out,
        "ordered_by": counts.ordered_by,
    }
    own = own_taskset(tenant, taskset_id)
    await connection.execute(sa.update(taskset).where(own).values(pipeline=values))


async def insert_source_rows(
    connection: AsyncConnection, tenant: str, taskset_id: str, *, first: int, rows: bytes
) -> None:
    """Stores the source rows of the rows from `first` on, 8 bytes each."""
    values = {"tenant": tenant, "taskset_id": taskset_id, "first": first, "rows": rows}
    await connection.execute(sa.insert(task_origin).values(values))


async def source_rows_of(
    connection: AsyncConnection, tenant: str, taskset_id: str, *, first: int, count: int
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
            task_origin.c.tenant == tenant,
            task_origin.c.taskset_id == taskset_id,
            begin < first + count,
            begin + size > first,
        )
        .order_by(begin)
    )
    return array("q", b"".join((await connection.execute(statement)).scalars())).tolist()


async def stage_pipelines(connection: AsyncConnection, key: StageKey) -> list[StagePipeline]:
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
        for row in await connection.execute(statement)
    ]


def says_none_left(counts: PipelineCounts) -> str:
    """Explains why a taskset is empty, as the end of a sentence."""
    reasons = sorted(counts.left_out.items(), key=lambda item: -item[1])
    listed = "; ".join(f"{count:,} by {reason}" for reason, count in reasons)
    return f"task_pipeline leaves none of its {counts.num_read:,} rows: {listed}"


async def counts_of(
    connection: AsyncConnection, tenant: str, taskset_id: str
) -> PipelineCounts | None:
    """Returns the counts of a taskset; None without a task pipeline."""
    statement = sa.select(taskset.c.pipeline).where(own_taskset(tenant, taskset_id))
    found = (await connection.execute(statement)).scalar_one_or_none()
    return None if found is None else PipelineCounts(**found)
