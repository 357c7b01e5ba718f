"""Stores tasks that clients upload; retries are idempotent.

An upload counts its rows. A retry sends all rows from the first, and only those beyond the count
are added. Two clients that send the same upload concurrently store each row once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.buffer.domain.tasks import RefusedRow, RowChunk
from services.buffer.store.database import notify, tasksets_topic, work_topic
from services.buffer.store.media import release_media, taskset_user, use_stored_media
from services.buffer.store.quotas import BufferQuotas
from services.buffer.store.stages import stages_using
from services.buffer.store.tasksets import (
    Taskset,
    delete_tasks,
    find_taskset,
    insert_tasks,
    update_taskset,
)
from services.buffer.store.uploads import (
    StoredUpload,
    complete_upload,
    delete_uploads,
    find_upload,
    grow_upload,
    insert_submitted,
    insert_upload,
)
from trinity.errors import InvalidRequest, PreconditionFailed
from trinity.runtime.sql import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadKey:
    """A request that stores tasks under a name."""

    tenant: str
    name: str
    request_id: str
    is_queue: bool


async def begin_upload(
    connection: Connection, key: UploadKey, quotas: BufferQuotas
) -> StoredUpload:
    """Returns the current upload; the unfinished one of another request is replaced.

    Raises: PreconditionFailed when the taskset accepts no more rows; InvalidRequest when the
    request id was used for another taskset; QuotaExceeded when the tenant has too many.
    """
    if await find_upload(connection, key.tenant, key.request_id) is None:
        await quotas.check_new_upload(connection, key.tenant)
    if await insert_submitted(connection, key.tenant, key.name, is_queue=key.is_queue):
        await quotas.check_new_taskset(connection, key.tenant)
    found = await _lock_taskset(connection, key)
    upload = await find_upload(connection, key.tenant, key.request_id)
    if upload is not None:
        if upload.taskset_id != found.taskset_id:
            raise InvalidRequest("request_id: it was used for another taskset, choose a new one")
        await grow_upload(connection, key.tenant, key.request_id, 0)
        return upload
    if found.is_queue != key.is_queue:
        kind = "a queue: say so" if found.is_queue else "no queue: choose another name"
        raise PreconditionFailed(f"taskset {key.name} is {kind}")
    if found.is_complete:
        why = "is closed" if found.is_queue else "was submitted before"
        raise PreconditionFailed(f"taskset {key.name} {why}: choose another name")
    if not found.is_queue:
        await _start_over(connection, key, found)
    await insert_upload(connection, key.tenant, key.request_id, found.taskset_id)
    return StoredUpload(
        taskset_id=found.taskset_id, num_stored=0, num_refused=0, refused=[], is_complete=False
    )


async def _start_over(connection: Connection, key: UploadKey, found: Taskset) -> None:
    await delete_uploads(connection, key.tenant, found.taskset_id)
    await delete_tasks(connection, key.tenant, found.taskset_id)
    await release_media(connection, taskset_user(found.taskset_id))
    await update_taskset(connection, key.tenant, found.taskset_id, num_rows=0, num_bytes=0)


async def store_rows(
    connection: Connection, key: UploadKey, chunk: RowChunk, quotas: BufferQuotas
) -> None:
    """Stores rows of an upload, with the use of their images.

    Raises: PreconditionFailed when the taskset was taken over, deleted or closed meanwhile;
    QuotaExceeded when the tenant has no room for the new rows.
    """
    found, upload = await _lock_upload(connection, key)
    new = chunk.bodies[max(0, upload.num_stored - chunk.first) :]
    if upload.is_complete:
        return
    await grow_upload(connection, key.tenant, key.request_id, len(new))
    user = taskset_user(found.taskset_id)
    await use_stored_media(connection, key.tenant, user, chunk.media)
    if not new:
        return
    if found.is_complete:
        raise PreconditionFailed(f"taskset {key.name} is closed: choose another name")
    num_bytes = sum(len(body.encode()) for body in new)
    await quotas.check_tasks(connection, key.tenant, num_bytes)
    await insert_tasks(connection, key.tenant, found.taskset_id, found.num_rows, new)
    await update_taskset(
        connection,
        key.tenant,
        found.taskset_id,
        num_rows=found.num_rows + len(new),
        num_bytes=found.num_bytes + num_bytes,
    )
    if found.is_queue:
        await _notify_stages(connection, key.tenant, found.taskset_id)


async def end_upload(
    connection: Connection, key: UploadKey, num_refused: int, refused: Sequence[RefusedRow]
) -> StoredUpload:
    """Completes the upload, and its taskset too unless that is a queue."""
    found, upload = await _lock_upload(connection, key)
    if not upload.is_complete:
        await complete_upload(
            connection, key.tenant, key.request_id, num_refused=num_refused, refused=refused
        )
        if not found.is_queue:
            await update_taskset(connection, key.tenant, found.taskset_id, is_complete=True)
        await notify(connection, tasksets_topic(key.tenant))
    ended = await find_upload(connection, key.tenant, key.request_id)
    assert ended is not None
    return ended


async def _lock_upload(connection: Connection, key: UploadKey) -> tuple[Taskset, StoredUpload]:
    found = await find_taskset(connection, key.tenant, name=key.name, for_update=True)
    upload = await find_upload(connection, key.tenant, key.request_id)
    if found is None or upload is None or upload.taskset_id != found.taskset_id:
        raise PreconditionFailed(f"another client took over the taskset {key.name}, or deleted it")
    return found, upload


async def _lock_taskset(connection: Connection, key: UploadKey) -> Taskset:
    found = await find_taskset(connection, key.tenant, name=key.name, for_update=True)
    if found is None:
        raise PreconditionFailed(f"taskset {key.name} was deleted at this moment: submit it again")
    return found


async def close_queue(connection: Connection, tenant: str, found: Taskset) -> None:
    """Closes a queue; stages that draw from it end with the tasks it has."""
    await update_taskset(connection, tenant, found.taskset_id, is_complete=True)
    await notify(connection, tasksets_topic(tenant))
    await _notify_stages(connection, tenant, found.taskset_id)


async def _notify_stages(connection: Connection, tenant: str, taskset_id: str) -> None:
    topics = [work_topic(key) for key in await stages_using(connection, tenant, taskset_id)]
    if topics:
        await notify(connection, *topics)
