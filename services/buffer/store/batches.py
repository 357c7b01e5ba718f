"""Statements on batches: composed once, never changed."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.store.database import (
    decode_numbers,
    encode_numbers,
    in_stage,
    insert_rows,
    key_columns,
    same_stage,
)
from services.buffer.store.tables import batch, batch_item, experience, payload, step_report, task


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHead:
    """A batch without its rows."""

    step: int
    incarnation: int
    num_rows: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """A row of a batch: an experience, or a row of training data."""

    advantage: float
    weight: float
    experience_id: str | None = None
    taskset_id: str | None = None
    row_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRow:
    """A row of a batch with its content: wire bytes of a sample, or JSON of a data row."""

    position: int
    advantage: float
    weight: float
    experience_body: bytes | None
    row_json: str | None
    row_index: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What the trainer learned about a row."""

    position: int
    mean_ratio: float
    advantage: float


async def find_batch(connection: AsyncConnection, stage: Stage, step: int) -> BatchHead | None:
    """The batch of a step, if it is composed."""
    statement = sa.select(batch).where(
        in_stage(batch, stage.key), batch.c.line == stage.line, batch.c.step == step
    )
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    return BatchHead(
        step=row.step,
        incarnation=row.incarnation,
        num_rows=row.num_rows,
        metrics=decode_numbers(row.metrics),
    )


async def insert_batch(
    connection: AsyncConnection, stage: Stage, head: BatchHead, items: Sequence[BatchItem]
) -> None:
    """Record a batch with its rows in order."""
    own = {**key_columns(stage.key), "line": stage.line, "step": head.step}
    values = {
        **own,
        "incarnation": head.incarnation,
        "num_rows": head.num_rows,
        "metrics": encode_numbers(head.metrics),
    }
    await connection.execute(sa.insert(batch).values(values))
    rows = [
        {
            **own,
            "position": position,
            "source": "data" if item.experience_id is None else "experience",
            "experience_id": item.experience_id,
            "taskset_id": item.taskset_id,
            "row_index": item.row_index,
            "advantage": item.advantage,
            "weight": item.weight,
        }
        for position, item in enumerate(items)
    ]
    await insert_rows(connection, batch_item, rows)


def _rows_statement(stage: Stage, step: int) -> sa.Select[tuple[object, ...]]:
    same_experience = sa.and_(
        same_stage(experience, batch_item),
        experience.c.experience_id == batch_item.c.experience_id,
    )
    same_payload = sa.and_(
        same_stage(payload, experience),
        payload.c.segment_id == experience.c.segment_id,
        payload.c.payload_id == experience.c.payload_id,
    )
    same_task = sa.and_(
        task.c.tenant == batch_item.c.tenant,
        task.c.taskset_id == batch_item.c.taskset_id,
        task.c.index == batch_item.c.row_index,
    )
    source = (
        batch_item.outerjoin(experience, same_experience)
        .outerjoin(payload, same_payload)
        .outerjoin(task, same_task)
    )
    return (
        sa.select(
            batch_item.c.position,
            batch_item.c.advantage,
            batch_item.c.weight,
            batch_item.c.row_index,
            payload.c.body.label("payload_body"),
            task.c.body.label("task_body"),
        )
        .select_from(source)
        .where(
            in_stage(batch_item, stage.key),
            batch_item.c.line == stage.line,
            batch_item.c.step == step,
        )
        .order_by(batch_item.c.position)
    )


async def load_rows(
    connection: AsyncConnection, stage: Stage, step: int, first: int, count: int
) -> list[LoadedRow]:
    """Rows of a batch from position `first` on, in order, with their content."""
    c = batch_item.c
    statement = _rows_statement(stage, step).where(c.position >= first, c.position < first + count)
    return [
        LoadedRow(
            position=row.position,
            advantage=row.advantage,
            weight=row.weight,
            experience_body=None if row.payload_body is None else bytes(row.payload_body),
            row_json=row.task_body,
            row_index=row.row_index,
        )
        for row in await connection.execute(statement)
    ]


async def insert_report(
    connection: AsyncConnection,
    stage: Stage,
    step: int,
    metrics: dict[str, float],
) -> bool:
    """Record that the stage's newest incarnation trained a step; false when that is known."""
    statement = (
        insert(step_report)
        .values(
            **key_columns(stage.key),
            line=stage.line,
            step=step,
            incarnation=stage.incarnation,
            metrics=encode_numbers(metrics),
        )
        .on_conflict_do_nothing()
        .returning(step_report.c.step)
    )
    return (await connection.execute(statement)).first() is not None


async def was_trained_before(connection: AsyncConnection, stage: Stage, step: int) -> bool:
    """Whether an earlier incarnation trained this step."""
    statement = sa.select(step_report.c.step).where(
        in_stage(step_report, stage.key),
        step_report.c.line == stage.line,
        step_report.c.step == step,
        step_report.c.incarnation < stage.incarnation,
    )
    return (await connection.execute(statement)).first() is not None


async def store_feedback(
    connection: AsyncConnection, stage: Stage, step: int, rows: Sequence[Feedback]
) -> None:
    """Keep what was learned about each row of a batch."""
    if not rows:
        return
    statement = (
        sa.update(batch_item)
        .where(
            in_stage(batch_item, stage.key),
            batch_item.c.line == stage.line,
            batch_item.c.step == step,
            batch_item.c.position == sa.bindparam("own_position"),
        )
        .values(
            mean_ratio=sa.bindparam("new_ratio"), trained_advantage=sa.bindparam("new_advantage")
        )
    )
    values = [
        {
            "own_position": row.position,
            "new_ratio": row.mean_ratio,
            "new_advantage": row.advantage,
        }
        for row in rows
    ]
    await connection.execute(statement, values)
