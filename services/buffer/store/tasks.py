"""Statements on tasksets and their rows."""

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.store.database import insert_rows
from services.buffer.store.tables import task, taskset


@dataclass(frozen=True, slots=True, kw_only=True)
class Taskset:
    """A taskset without its rows."""

    taskset_id: str
    request_id: str | None
    is_complete: bool
    num_rows: int


async def claim_source(connection: AsyncConnection, tenant: str, source: str) -> Taskset | None:
    """Enter a taskset for content of this identity; None when it is there, complete.

    Waits for another transaction that is reading the same content, however long that takes.
    """
    await connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
    taskset_id = str(uuid.uuid4())
    statement = (
        insert(taskset)
        .values(tenant=tenant, taskset_id=taskset_id, source=source, is_complete=True)
        .on_conflict_do_nothing()
        .returning(taskset.c.taskset_id)
    )
    if (await connection.execute(statement)).first() is None:
        return None
    return Taskset(taskset_id=taskset_id, request_id=None, is_complete=True, num_rows=0)


async def copy_rows(
    connection: AsyncConnection, tenant: str, taskset_id: str, bodies: AsyncIterator[str]
) -> int:
    """Store the rows of a taskset as they come; answers how many there were."""
    raw = await connection.get_raw_connection()
    driver = raw.driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    count = 0
    statement = "COPY task (tenant, taskset_id, index, body) FROM STDIN"
    async with driver.cursor() as cursor, cursor.copy(statement) as copy:
        async for body in bodies:
            await copy.write_row((tenant, taskset_id, count, body))
            count += 1
    await set_num_rows(connection, tenant, taskset_id, count)
    return count


async def set_num_rows(
    connection: AsyncConnection, tenant: str, taskset_id: str, num_rows: int
) -> None:
    """Note that a taskset is complete."""
    await connection.execute(
        sa.update(taskset)
        .where(taskset.c.tenant == tenant, taskset.c.taskset_id == taskset_id)
        .values(num_rows=num_rows, is_complete=True)
    )


async def find_taskset(
    connection: AsyncConnection,
    tenant: str,
    *,
    name: str | None = None,
    source: str | None = None,
    for_update: bool = False,
) -> Taskset | None:
    """A taskset by the name a client gave it, or by the identity of its content."""
    by_name = taskset.c.source == source if name is None else taskset.c.name == name
    statement = sa.select(taskset).where(taskset.c.tenant == tenant, by_name)
    if for_update:
        statement = statement.with_for_update()
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    return Taskset(
        taskset_id=row.taskset_id,
        request_id=row.request_id,
        is_complete=row.is_complete,
        num_rows=row.num_rows,
    )


async def begin_upload(
    connection: AsyncConnection, tenant: str, name: str, request_id: str
) -> None:
    """Enter a taskset that a client is about to send, unless it is there."""
    statement = insert(taskset).values(
        tenant=tenant,
        taskset_id=str(uuid.uuid4()),
        name=name,
        request_id=request_id,
        is_complete=False,
    )
    await connection.execute(statement.on_conflict_do_nothing())


async def take_over_upload(
    connection: AsyncConnection, tenant: str, taskset_id: str, request_id: str
) -> None:
    """Start an unfinished upload from the beginning under another request."""
    mine = sa.and_(taskset.c.tenant == tenant, taskset.c.taskset_id == taskset_id)
    await connection.execute(sa.update(taskset).where(mine).values(request_id=request_id))
    await connection.execute(
        sa.delete(task).where(task.c.tenant == tenant, task.c.taskset_id == taskset_id)
    )


async def insert_tasks(
    connection: AsyncConnection, tenant: str, taskset_id: str, first: int, bodies: Sequence[str]
) -> None:
    """Store rows from index `first` on; those that are there stay as they are."""
    rows = [
        {"tenant": tenant, "taskset_id": taskset_id, "index": first + i, "body": body}
        for i, body in enumerate(bodies)
    ]
    await insert_rows(connection, task, rows, ignore_existing=True)
