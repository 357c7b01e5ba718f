"""Statements on images: stored once a tenant in chunks, used by segments and tasksets.

    await store_media(connection, "a", image.ref, image.content)
    await use_media(connection, "a", taskset_user(taskset_id), {image.ref.sha256})

A use is written in the transaction of what uses the image, and keeps the image from deletion.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert

from services.buffer.store.database import BufferDatabase, insert_rows
from services.buffer.store.media_schema import media, media_use
from services.buffer.store.schema import NOW
from trinity.errors import PreconditionFailed, Unavailable
from trinity.runtime.rpc.limits import CHUNK_BYTES
from trinity.runtime.sql import Connection
from trinity.types import BlobRef

UNUSED = timedelta(days=1)
"""Time after which an image without a use is deleted."""
HASHES_AT_ONCE = 1_000
DELETED_AT_ONCE = 100
HASHES = ARRAY(sa.LargeBinary)
MEDIA = media.c
_IS_HEAD = MEDIA.number == 0
_IS_USED = sa.exists().where(media_use.c.tenant == MEDIA.tenant, media_use.c.sha256 == MEDIA.sha256)


def taskset_user(taskset_id: str) -> str:
    """Returns the name under which a taskset uses images."""
    return f"taskset/{taskset_id}"


def segment_user(segment_id: int) -> str:
    """Returns the name under which a segment uses images."""
    return f"segment/{segment_id}"


async def store_media(connection: Connection, tenant: str, ref: BlobRef, content: bytes) -> None:
    """Stores an image; the age of one that is there is reset."""
    own = sa.and_(MEDIA.tenant == tenant, MEDIA.sha256 == ref.sha256, _IS_HEAD)
    again = sa.update(media).where(own).values(stored_at=NOW).returning(MEDIA.number)
    if await connection.fetch_first(again) is not None:
        return
    place = {"tenant": tenant, "sha256": ref.sha256}
    for number, begin in enumerate(range(0, len(content), CHUNK_BYTES)):
        values = {"size": ref.size, "media_type": ref.media_type, "number": number}
        chunk = content[begin : begin + CHUNK_BYTES]
        statement = insert(media).values(**place, **values, body=chunk)
        await connection.execute(statement.on_conflict_do_nothing())


async def hold_media(connection: Connection, tenant: str, hashes: Collection[bytes]) -> set[bytes]:
    """Keeps images from deletion until the transaction ends; returns those that are stored."""
    found: set[bytes] = set()
    ordered = sorted(hashes)
    for first in range(0, len(ordered), HASHES_AT_ONCE):
        statement = (
            sa.select(MEDIA.sha256)
            .where(
                MEDIA.tenant == tenant,
                MEDIA.sha256
                == sa.any_(sa.literal(ordered[first : first + HASHES_AT_ONCE], HASHES)),
                _IS_HEAD,
            )
            .order_by(MEDIA.sha256)
            .with_for_update(read=True, key_share=True)
        )
        found.update(map(bytes, await connection.fetch_column(statement)))
    return found


async def use_media(
    connection: Connection, tenant: str, used_by: str, hashes: Collection[bytes]
) -> None:
    """Records the use of images that are held."""
    rows = [{"tenant": tenant, "sha256": sha256, "used_by": used_by} for sha256 in sorted(hashes)]
    await insert_rows(connection, media_use, rows, ignore_existing=True)


async def use_stored_media(
    connection: Connection, tenant: str, used_by: str, hashes: Collection[bytes]
) -> None:
    """Records the use of images that were stored before.

    Raises: Unavailable when one of them was deleted meanwhile.
    """
    if set(hashes) - await hold_media(connection, tenant, hashes):
        raise Unavailable("images of the rows were deleted while they were read: try again")
    await use_media(connection, tenant, used_by, hashes)


async def media_used_by(connection: Connection, tenant: str, used_by: str) -> set[bytes]:
    """Returns the images that a taskset or segment uses."""
    own = sa.and_(media_use.c.tenant == tenant, media_use.c.used_by == used_by)
    return set(map(bytes, await connection.fetch_column(sa.select(media_use.c.sha256).where(own))))


async def release_media(connection: Connection, used_by: str) -> None:
    """Ends all uses by a taskset or segment."""
    await connection.execute(sa.delete(media_use).where(media_use.c.used_by == used_by))


async def read_media(
    database: BufferDatabase, tenant: str, hashes: Sequence[bytes]
) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yields the chunks of images with their hashes; a slow reader holds no transaction open.

    Raises: PreconditionFailed when the tenant does not use one of them.
    """
    for sha256 in hashes:
        own = sa.and_(MEDIA.tenant == tenant, MEDIA.sha256 == sha256)
        number, left = 0, 1
        while left > 0:
            chosen = sa.select(MEDIA.size, MEDIA.body).where(own, MEDIA.number == number, _IS_USED)
            async with database.autocommit() as connection:
                row = await connection.fetch_first(chosen)
            if row is None:
                raise PreconditionFailed(
                    f"no taskset or sample of tenant {tenant} uses the image {sha256.hex()}"
                )
            left = row.size - number * CHUNK_BYTES - len(row.body)
            number += 1
            yield sha256, bytes(row.body)


async def delete_unused_media(database: BufferDatabase) -> None:
    """Deletes images that nothing has used for a day, some in each transaction."""
    old = sa.and_(_IS_HEAD, MEDIA.stored_at < NOW - UNUSED, ~_IS_USED)
    heads = (
        sa.select(MEDIA.tenant, MEDIA.sha256)
        .where(old)
        .limit(DELETED_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    while True:
        async with database.transaction() as connection:
            places = [(row.tenant, row.sha256) for row in await connection.fetch(heads)]
            if not places:
                return
            # A use may have been committed before the locks were held: look again.
            for tenant, sha256 in places:
                own = sa.and_(MEDIA.tenant == tenant, MEDIA.sha256 == sha256)
                await connection.execute(sa.delete(media).where(own, ~_IS_USED))
