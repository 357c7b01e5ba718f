"""Segments: partitions of the payload table, so that old payloads can be dropped as a whole.

Each is read and written by its own name, not through `payload`: a session that loads the list of
partitions at the moment when another one attaches a partition may miss it until the next one is
attached (docs/decisions/0047-contents-by-the-name-of-their-partition.md).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.store.database import given, in_given_stage, key_columns
from services.buffer.store.prepared import execute, fetch
from services.buffer.store.tables import NOW, payload, segment, stage
from trinity.errors import Unavailable
from trinity.types import StageKey

REMOVERS_LOCK = 0x7365676D
"""Advisory lock of the only process that removes partitions: Postgres detaches one at a time."""


@dataclass(frozen=True, slots=True)
class Held:
    """Size of the contents of a segment."""

    num_rows: int
    num_bytes: int


async def open_segment(connection: AsyncConnection, key: StageKey) -> int:
    """Creates a partition for the next payloads of this stage; returns its segment id.

    It is created as a table and attached: creating it in place would lock out readers of payloads.
    """
    statement = sa.insert(segment).values(key_columns(key)).returning(segment.c.segment_id)
    segment_id = int((await connection.execute(statement)).scalar_one())
    name = partition(segment_id)
    await connection.execute(sa.text(f"CREATE TABLE {name} (LIKE payload INCLUDING ALL)"))
    await connection.execute(
        sa.text(f"ALTER TABLE payload ATTACH PARTITION {name} FOR VALUES IN ({segment_id})")
    )
    return segment_id


def partition(segment_id: int) -> str:
    """Returns the name of a segment's table."""
    return f"payload_{segment_id}"


@lru_cache(maxsize=256)
def payloads_of(segment_id: int) -> sa.Table:
    """Returns a segment's table, with the columns of `payload`."""
    return payload.to_metadata(sa.MetaData(), name=partition(segment_id))


@contextmanager
def while_it_is_there() -> Iterator[None]:
    """Wraps reads of a segment that may be retired and dropped in the meantime.

    Raises: Unavailable when it was dropped; a retry finds that the contents are gone.
    """
    try:
        yield
    except (psycopg.errors.UndefinedTable, sa.exc.ProgrammingError) as error:
        cause = getattr(error, "orig", error)
        if not isinstance(cause, psycopg.errors.UndefinedTable):
            raise
        raise Unavailable("contents were removed while they were read: ask again") from error


FILL = sa.select(segment.c.num_rows, segment.c.num_bytes).where(
    in_given_stage(segment),
    segment.c.segment_id
    == sa.select(stage.c.segment_id).where(in_given_stage(stage)).scalar_subquery(),
)
"""Size of the segment that takes a stage's samples."""
_GROW = (
    sa.update(segment)
    .where(in_given_stage(segment), segment.c.segment_id == sa.bindparam("given_segment"))
    .values(
        num_rows=segment.c.num_rows + sa.bindparam("more_rows", type_=sa.BigInteger),
        num_bytes=segment.c.num_bytes + sa.bindparam("more_bytes", type_=sa.BigInteger),
    )
)


async def grow_segment(
    connection: AsyncConnection, key: StageKey, segment_id: int, num_rows: int, num_bytes: int
) -> None:
    """Adds stored rows and bytes to the size of a segment."""
    values = given(key, given_segment=segment_id, more_rows=num_rows, more_bytes=num_bytes)
    await execute(connection, _GROW, values)


async def try_to_remove_alone(connection: AsyncConnection) -> bool:
    """Tries to get the lock for removing partitions, held until `let_others_remove`."""
    asked = sa.select(sa.func.pg_try_advisory_lock(REMOVERS_LOCK))
    return bool((await connection.execute(asked)).scalar_one())


async def let_others_remove(connection: AsyncConnection) -> None:
    """Releases the lock of `try_to_remove_alone`."""
    await connection.execute(sa.select(sa.func.pg_advisory_unlock(REMOVERS_LOCK)))


_UNREMOVED = sa.text(
    "SELECT s.segment_id, i.inhrelid IS NOT NULL AS is_attached,"
    " coalesce(i.inhdetachpending, false) AS is_pending FROM segment s"
    " LEFT JOIN pg_inherits i ON i.inhrelid = to_regclass('payload_' || s.segment_id)"
    " WHERE s.retired_at IS NOT NULL AND s.removed_at IS NULL"
    " ORDER BY is_pending DESC, s.segment_id"
)


async def remove_retired(connection: AsyncConnection) -> int:
    """Drops the partitions of retired segments; returns their number.

    Each statement is a transaction of its own: after a crash between two of them, the next caller
    continues there. Readers and writers of other partitions are not blocked.
    """
    found = await fetch(connection, _UNREMOVED)
    for row in found:
        name = partition(row.segment_id)
        if row.is_attached:
            await _detach(connection, name, "FINALIZE" if row.is_pending else "CONCURRENTLY")
        await connection.execute(sa.text(f"DROP TABLE IF EXISTS {name}"))
        gone = sa.update(segment).where(segment.c.segment_id == row.segment_id)
        await connection.execute(gone.values(removed_at=NOW))
    return len(found)


async def _detach(connection: AsyncConnection, name: str, how: str) -> None:
    await connection.execute(sa.text(f"ALTER TABLE payload DETACH PARTITION {name} {how}"))
