"""Statements on tasksets that nothing refers to any more."""

from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.store.tables import NOW, stage_taskset, taskset, taskset_upload

ABANDONED = timedelta(days=7)
"""Time after which a stalled upload, or rows of files that no stage uses, may be deleted."""
T = taskset.c


_IS_USED = sa.exists().where(
    stage_taskset.c.tenant == T.tenant, stage_taskset.c.taskset_id == T.taskset_id
)
_IS_COMING = sa.exists().where(
    taskset_upload.c.tenant == T.tenant,
    taskset_upload.c.taskset_id == T.taskset_id,
    taskset_upload.c.last_sent_at >= NOW - ABANDONED,
)


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A taskset to delete."""

    tenant: str
    taskset_id: str
    name: str


async def lock_abandoned(connection: AsyncConnection) -> Abandoned | None:
    """Locks and returns one such taskset; no stage can take it before the transaction ends.

    It is an unfinished upload, or rows of files, which can be read again. A complete upload of a
    client stays until a user deletes it.
    """
    is_cut_off = sa.and_(T.name.is_not(None), ~T.is_complete, ~T.is_queue, ~_IS_COMING)
    old = T.created_at < NOW - ABANDONED
    statement = (
        sa.select(T.tenant, T.taskset_id, T.name, T.source)
        .where(old, ~_IS_USED, sa.or_(T.source.is_not(None), is_cut_off))
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    # A stage may have taken it, or its client resumed, before the lock was held: check again.
    own = sa.and_(T.tenant == row.tenant, T.taskset_id == row.taskset_id)
    is_wanted = sa.select(sa.or_(_IS_USED, _IS_COMING)).select_from(taskset).where(own)
    if (await connection.execute(is_wanted)).scalar_one():
        return None
    return Abandoned(row.tenant, row.taskset_id, row.name or row.source)
