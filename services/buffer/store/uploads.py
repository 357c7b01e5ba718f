"""Statements on uploads of tasks, and on tasksets that uploads or stages have abandoned."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa

from services.buffer.domain.tasks import RefusedRow
from services.buffer.store.database import columns_of, insert_new, of_taskset, value_of
from services.buffer.store.schema import NOW, stage_taskset, taskset, taskset_upload
from trinity.runtime.sql import Connection

TASKSET_UPLOAD = taskset_upload.c
ABANDONED = timedelta(days=7)
"""Time after which a stalled upload, or rows of files that no stage uses, may be deleted."""
TASKSET = taskset.c
_IS_USED = sa.exists().where(
    stage_taskset.c.tenant == TASKSET.tenant, stage_taskset.c.taskset_id == TASKSET.taskset_id
)
_IS_COMING = sa.exists().where(
    taskset_upload.c.tenant == TASKSET.tenant,
    taskset_upload.c.taskset_id == TASKSET.taskset_id,
    taskset_upload.c.last_sent_at >= NOW - ABANDONED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUpload:
    """One request that stores tasks."""

    taskset_id: str
    num_stored: int
    num_refused: int
    refused: list[RefusedRow]
    is_complete: bool


async def insert_submitted(
    connection: Connection, tenant: str, name: str, *, is_queue: bool
) -> bool:
    """Inserts a taskset that a client is about to upload; False if it exists."""
    new = {"taskset_id": str(uuid.uuid4()), "is_complete": False, "is_queue": is_queue}
    return await insert_new(connection, taskset, {"tenant": tenant, "name": name, **new})


async def find_upload(connection: Connection, tenant: str, request_id: str) -> StoredUpload | None:
    """Returns the upload of a request, if it has begun."""
    row = await connection.fetch_first(sa.select(taskset_upload).where(_own(tenant, request_id)))
    if row is None:
        return None
    return value_of(StoredUpload, row, refused=[RefusedRow(**item) for item in row.refused])


async def insert_upload(
    connection: Connection, tenant: str, request_id: str, taskset_id: str
) -> None:
    """Inserts an upload."""
    values = {"tenant": tenant, "request_id": request_id, "taskset_id": taskset_id}
    await connection.execute(sa.insert(taskset_upload).values(values))


async def grow_upload(connection: Connection, tenant: str, request_id: str, num_rows: int) -> None:
    """Records that more rows of an upload are stored."""
    await connection.execute(
        sa.update(taskset_upload)
        .where(_own(tenant, request_id))
        .values(num_stored=TASKSET_UPLOAD.num_stored + num_rows, last_sent_at=NOW)
    )


async def complete_upload(
    connection: Connection,
    tenant: str,
    request_id: str,
    *,
    num_refused: int,
    refused: Sequence[RefusedRow],
) -> None:
    """Records that an upload is complete, and its refused rows."""
    listed = [columns_of(item) for item in refused]
    await connection.execute(
        sa.update(taskset_upload)
        .where(_own(tenant, request_id))
        .values(is_complete=True, num_refused=num_refused, refused=listed)
    )


async def delete_uploads(connection: Connection, tenant: str, taskset_id: str) -> None:
    """Deletes all uploads of a taskset."""
    own = of_taskset(taskset_upload, tenant, taskset_id)
    await connection.execute(sa.delete(taskset_upload).where(own))


def _own(tenant: str, request_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(TASKSET_UPLOAD.tenant == tenant, TASKSET_UPLOAD.request_id == request_id)


@dataclass(frozen=True, slots=True)
class AbandonedTaskset:
    """A taskset to delete."""

    tenant: str
    taskset_id: str
    name: str


async def lock_abandoned(connection: Connection) -> AbandonedTaskset | None:
    """Locks and returns one such taskset; no stage can take it before the transaction ends.

    It is an unfinished upload, or rows of files, which can be read again. A complete upload of a
    client stays until a user deletes it.
    """
    is_cut_off = sa.and_(
        TASKSET.name.is_not(None), ~TASKSET.is_complete, ~TASKSET.is_queue, ~_IS_COMING
    )
    old = TASKSET.created_at < NOW - ABANDONED
    statement = (
        sa.select(TASKSET.tenant, TASKSET.taskset_id, TASKSET.name, TASKSET.source)
        .where(old, ~_IS_USED, sa.or_(TASKSET.source.is_not(None), is_cut_off))
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    row = await connection.fetch_first(statement)
    if row is None:
        return None
    # A stage may have taken it, or its client resumed, before the lock was held: check again.
    own = of_taskset(taskset, row.tenant, row.taskset_id)
    is_wanted = sa.select(sa.or_(_IS_USED, _IS_COMING)).select_from(taskset).where(own)
    if await connection.fetch_value(is_wanted):
        return None
    return AbandonedTaskset(row.tenant, row.taskset_id, row.name or row.source)
