"""Statements for users who list, read and delete tasksets."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.states import StageState, TasksetKind
from services.buffer.store.tables import (
    STAGE_KEY,
    stage,
    stage_taskset,
    task,
    task_feature,
    task_origin,
    taskset,
    taskset_upload,
)
from services.buffer.store.task_pipelines import PipelineCounts
from services.buffer.store.tasks import delete_tasks, own_taskset

KEPT_KINDS = (TasksetKind.DATA, TasksetKind.EXPERT)
"""Tasksets whose rows are part of batches, which can be trained again."""
MAX_READ_BYTES = 1024 * 1024
"""Limit for rows that are read together; a single larger row is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
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
            taskset_upload.c.tenant == tenant,
            taskset_upload.c.taskset_id == taskset.c.taskset_id,
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


def _from_row(row: sa.Row[Any]) -> Described:
    return Described(
        taskset_id=row.taskset_id,
        name=row.name or "",
        source=row.source or "",
        is_complete=row.is_complete,
        is_queue=row.is_queue,
        num_rows=row.num_rows,
        num_refused=int(row.num_refused),
        num_stages=row.num_stages,
        created_at=row.created_at,
        pipeline=PipelineCounts(**row.pipeline) if row.pipeline else None,
    )


async def list_tasksets(
    connection: AsyncConnection, tenant: str, *, limit: int, offset: int
) -> list[Described]:
    """Returns tasksets of a tenant, newest first."""
    order = (taskset.c.created_at.desc(), taskset.c.taskset_id)
    statement = _described(tenant).order_by(*order).limit(limit).offset(offset)
    return [_from_row(row) for row in await connection.execute(statement)]


async def find_described(
    connection: AsyncConnection, tenant: str, name_or_id: str, *, for_update: bool = False
) -> Described | None:
    """Returns a taskset by its name or UUID."""
    wanted = taskset.c.name == name_or_id
    if (own_id := _uuid(name_or_id)) is not None:
        wanted = sa.or_(wanted, taskset.c.taskset_id == own_id)
    statement = _described(tenant).where(wanted)
    if for_update:
        statement = statement.with_for_update(of=taskset)
    row = (await connection.execute(statement)).first()
    return None if row is None else _from_row(row)


def _uuid(text: str) -> str | None:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


async def rows_of(
    connection: AsyncConnection, tenant: str, taskset_id: str, *, first: int, count: int
) -> Sequence[str]:
    """Returns at most `count` rows in order, within `MAX_READ_BYTES` but at least one."""
    num_bytes = sa.func.sum(sa.func.octet_length(task.c.body)).over(order_by=task.c.index)
    sized = (
        sa.select(task.c.index, task.c.body, num_bytes.label("num_bytes"))
        .where(
            task.c.tenant == tenant,
            task.c.taskset_id == taskset_id,
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
    return list((await connection.execute(statement)).scalars())


async def find_need(connection: AsyncConnection, tenant: str, taskset_id: str) -> str:
    """Names a stage that still needs a taskset, as the end of a sentence; empty without one."""
    same = sa.and_(*(stage.c[name] == stage_taskset.c[name] for name in STAGE_KEY))
    statement = (
        sa.select(stage.c.stage, stage.c.experiment_id, stage.c.state)
        .join_from(stage_taskset, stage, same)
        .where(
            stage_taskset.c.tenant == tenant,
            stage_taskset.c.taskset_id == taskset_id,
            sa.or_(
                stage.c.state != StageState.FINISHED,
                stage_taskset.c.kind.in_(list(KEPT_KINDS)),
            ),
        )
        .limit(1)
    )
    row = (await connection.execute(statement)).first()
    if row is None:
        return ""
    why = "has its rows in batches" if row.state == StageState.FINISHED else f"is {row.state}"
    return f"stage {row.stage} of experiment {row.experiment_id} {why}"


async def delete_taskset(connection: AsyncConnection, tenant: str, taskset_id: str) -> None:
    """Deletes a taskset and everything that belongs to it."""
    await delete_tasks(connection, tenant, taskset_id)
    for table in (task_feature, task_origin, taskset_upload):
        await connection.execute(
            sa.delete(table).where(table.c.tenant == tenant, table.c.taskset_id == taskset_id)
        )
    await connection.execute(sa.delete(taskset).where(own_taskset(tenant, taskset_id)))
