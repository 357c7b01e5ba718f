"""Segments: partitions of the payload table, so that old payloads can be dropped whole."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.store.database import in_stage, key_columns
from services.buffer.store.tables import segment
from trinity.types import StageKey


async def open_segment(connection: AsyncConnection, key: StageKey) -> int:
    """Make a partition for this stage's next payloads.

    It is attached, not created in place: that would lock out everybody who reads payloads.
    """
    statement = sa.insert(segment).values(key_columns(key)).returning(segment.c.segment_id)
    segment_id = int((await connection.execute(statement)).scalar_one())
    name = f"payload_{segment_id}"
    await connection.execute(sa.text(f"CREATE TABLE {name} (LIKE payload INCLUDING ALL)"))
    await connection.execute(
        sa.text(f"ALTER TABLE payload ATTACH PARTITION {name} FOR VALUES IN ({segment_id})")
    )
    return segment_id


async def grow_segment(
    connection: AsyncConnection, key: StageKey, segment_id: int, num_rows: int, num_bytes: int
) -> int:
    """Count what was stored; answers the rows that the segment holds now."""
    statement = (
        sa.update(segment)
        .where(in_stage(segment, key), segment.c.segment_id == segment_id)
        .values(num_rows=segment.c.num_rows + num_rows, num_bytes=segment.c.num_bytes + num_bytes)
        .returning(segment.c.num_rows)
    )
    return int((await connection.execute(statement)).scalar_one())
