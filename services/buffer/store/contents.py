"""Statements that read the contents of experiences."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.revision import revised
from services.buffer.store.database import among_given, given, in_given_stage, of_given_stage
from services.buffer.store.prepared import Row, fetch, fetch_binary
from services.buffer.store.segments import payloads_of, while_it_is_there
from services.buffer.store.tables import experience, segment
from trinity.errors import PreconditionFailed
from trinity.types import StageKey

C, S = experience.c, segment.c

PLACE = (C.segment_id, C.payload_id, C.shaped_reward, C.is_masked)
"""Columns that locate the content of an experience, and its changes by operators."""


def has_content(whose: str = "given") -> sa.ColumnElement[bool]:
    """Condition: the content is in a segment that is not retired; it may still be deleted."""
    retired = sa.select(S.segment_id).where(
        in_given_stage(segment, whose), S.retired_at.is_not(None)
    )
    return sa.and_(of_given_stage(experience, whose), C.segment_id.not_in(retired))


_PLACES = sa.select(C.experience_id, *PLACE).where(among_given(C.experience_id), has_content())


async def load_bodies(
    connection: AsyncConnection, key: StageKey, ids: Sequence[str]
) -> list[bytes]:
    """Returns wire bytes of experiences as operators left them, in the order of `ids`.

    Raises: PreconditionFailed when some of them are gone.
    """
    return in_order_of(ids, await find_bodies(connection, key, ids), key)


def in_order_of(ids: Sequence[str], found: Mapping[str, bytes], key: StageKey) -> list[bytes]:
    """Returns the contents of these experiences, in the order of `ids`.

    Raises: PreconditionFailed when some of them are gone.
    """
    if missing := sum(own_id not in found for own_id in ids):
        raise PreconditionFailed(
            f"the contents of {missing} samples of stage {key.stage} are gone: they were deleted, "
            "or removed as older than all that is kept (`buffer.keep_steps`)"
        )
    return [found[own_id] for own_id in ids]


async def find_bodies(
    connection: AsyncConnection, key: StageKey, ids: Sequence[str]
) -> dict[str, bytes]:
    """Returns wire bytes by id, as operators left them, of experiences that still have them."""
    return await bodies_at(connection, key, await fetch(connection, _PLACES, given(key, ids=ids)))


async def bodies_at(
    connection: AsyncConnection, key: StageKey, rows: Sequence[Row]
) -> dict[str, bytes]:
    """Does the same for rows with the `PLACE` columns."""
    bodies: dict[str, bytes] = {}
    for segment_id in {row.segment_id for row in rows}:
        own = list({row.payload_id for row in rows if row.segment_id == segment_id})
        values = given(key, ids=own, segment=segment_id)
        with while_it_is_there():
            found = await fetch_binary(connection, _bodies_in(segment_id), values)
        bodies |= {str(payload_id): body for payload_id, body in found}
    return {
        row.experience_id: _revised(bodies[row.payload_id], row)
        for row in rows
        if row.payload_id in bodies
    }


@lru_cache
def _bodies_in(segment_id: int) -> sa.Select[tuple[str, bytes]]:
    table = payloads_of(segment_id)
    return sa.select(table.c.payload_id, table.c.body).where(
        in_given_stage(table),
        table.c.segment_id == sa.bindparam("segment"),
        among_given(table.c.payload_id),
    )


def _revised(body: bytes, row: Row) -> bytes:
    return revised(body, reward=row.shaped_reward, is_masked=row.is_masked)
