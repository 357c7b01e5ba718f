"""Statements on tasksets and their rows."""

import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.store.database import among, insert_rows
from services.buffer.store.prepared import driver_of
from services.buffer.store.tables import task, taskset


@dataclass(frozen=True, slots=True, kw_only=True)
class Taskset:
    """A taskset without its rows."""

    taskset_id: str
    is_complete: bool
    num_rows: int
    is_queue: bool = False
    """True if rows are added over time and drawn while more are still expected."""


def own_taskset(tenant: str, taskset_id: str) -> sa.ColumnElement[bool]:
    """Condition: the row of a taskset."""
    return sa.and_(taskset.c.tenant == tenant, taskset.c.taskset_id == taskset_id)


def from_row(row: sa.Row[Any]) -> Taskset:
    """Converts a row with all columns."""
    return Taskset(
        taskset_id=row.taskset_id,
        is_complete=row.is_complete,
        num_rows=row.num_rows,
        is_queue=row.is_queue,
    )


async def claim_source(connection: AsyncConnection, tenant: str, source: str) -> str | None:
    """Inserts a taskset for content of this identity; None if a complete one exists.

    Waits for another transaction that is reading the same content, without a timeout.
    """
    await connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
    taskset_id = str(uuid.uuid4())
    statement = (
        insert(taskset)
        .values(tenant=tenant, taskset_id=taskset_id, source=source, is_complete=True)
        .on_conflict_do_nothing()
        .returning(taskset.c.taskset_id)
    )
    row = (await connection.execute(statement)).first()
    return None if row is None else str(row.taskset_id)


async def copy_rows(
    connection: AsyncConnection,
    tenant: str,
    taskset_id: str,
    rows: AsyncIterator[bytes],
    *,
    first: int = 0,
) -> int:
    """Streams rows of a taskset, given as chunks of whole lines, from index `first` on.

    Returns the number of rows that the taskset has then.
    """
    driver = driver_of(connection)
    count = first
    owner = _escaped(f"{tenant}\t{taskset_id}".encode(), b"\\")
    statement = "COPY task (tenant, taskset_id, index, body) FROM STDIN"
    async with driver.cursor() as cursor, cursor.copy(statement) as copy:
        async for lines in rows:
            bodies = _escaped(lines, b"\\\t\r").split(b"\n")[:-1]
            numbered = enumerate(bodies, count)
            await copy.write(b"".join([b"%b\t%d\t%b\n" % (owner, i, body) for i, body in numbered]))
            count += len(bodies)
    await update_taskset(connection, tenant, taskset_id, num_rows=count)
    return count


_ESCAPES = {b"\\": rb"\\", b"\t": rb"\t", b"\r": rb"\r"}


def _escaped(text: bytes, characters: bytes) -> bytes:
    """Escapes characters for COPY; line ends need none, since a row has none in its content."""
    for character in (b"%c" % code for code in characters):
        text = text.replace(character, _ESCAPES[character])
    return text


async def update_taskset(
    connection: AsyncConnection, tenant: str, taskset_id: str, **values: int | bool
) -> None:
    """Updates columns of a taskset."""
    own = own_taskset(tenant, taskset_id)
    await connection.execute(sa.update(taskset).where(own).values(**values))


async def find_taskset(
    connection: AsyncConnection,
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
    row = (await connection.execute(statement)).first()
    return None if row is None else from_row(row)


async def get_taskset(connection: AsyncConnection, tenant: str, taskset_id: str) -> Taskset:
    """Returns a taskset that exists."""
    statement = sa.select(taskset).where(own_taskset(tenant, taskset_id))
    return from_row((await connection.execute(statement)).one())


async def hold_tasksets(connection: AsyncConnection, tenant: str, ids: Sequence[str]) -> set[str]:
    """Locks tasksets against deletion until the transaction ends; returns those that exist."""
    statement = (
        sa.select(taskset.c.taskset_id)
        .where(taskset.c.tenant == tenant, among(taskset.c.taskset_id, ids))
        .order_by(taskset.c.taskset_id)
        .with_for_update(read=True)
    )
    return set((await connection.execute(statement)).scalars())


async def insert_tasks(
    connection: AsyncConnection, tenant: str, taskset_id: str, first: int, bodies: Sequence[str]
) -> None:
    """Inserts rows from index `first` on."""
    rows = [
        {"tenant": tenant, "taskset_id": taskset_id, "index": first + i, "body": body}
        for i, body in enumerate(bodies)
    ]
    await insert_rows(connection, task, rows)


async def delete_tasks(connection: AsyncConnection, tenant: str, taskset_id: str) -> None:
    """Deletes all rows of a taskset, without a statement timeout."""
    await connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
    await connection.execute(
        sa.delete(task).where(task.c.tenant == tenant, task.c.taskset_id == taskset_id)
    )
