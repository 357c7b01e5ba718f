"""RPC methods for tasksets: the upload of tasks, and TasksetService."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from services.buffer.domain.tasks import RowBuffer
from services.buffer.operations.uploads import (
    UploadKey,
    begin_upload,
    close_queue,
    end_upload,
    store_rows,
)
from services.buffer.servicer.common import BufferServicerBase, Context
from services.buffer.servicer.convert import (
    check_max_items,
    parse_name,
    parse_subject_part,
    parse_uuid,
    pipeline_to_proto,
    to_message,
)
from services.buffer.store.database import BufferDatabase
from services.buffer.store.stages import get_stage, stages_using
from services.buffer.store.tasksets import (
    TasksetDescription,
    delete_taskset,
    find_described,
    find_need,
    get_taskset,
    list_tasksets,
    load_row_bodies,
    source_rows_of,
)
from services.buffer.store.uploads import StoredUpload
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import taskset_pb2
from trinity.errors import InvalidRequest, NotFound, PreconditionFailed
from trinity.runtime.rpc.answers import first_within
from trinity.runtime.sql import Connection

ROWS_AT_ONCE = 500
"""Number of rows to parse before yielding to other calls."""
USUAL_PAGE = 100
MAX_PAGE = 1_000
MAX_OFFSET = 10**9
MAX_OFFSET_DIGITS = 10
MAX_SHOWN = 100
MAX_ROW_NUMBER = 10**12


class TasksetRpcs(BufferServicerBase):
    """SubmitTaskset."""

    async def SubmitTaskset(
        self, requests: AsyncIterator[pb.SubmitTasksetRequest], _: Context
    ) -> pb.SubmitTasksetResponse:
        """Stores a streamed taskset in chunks; retries continue after the stored rows."""
        key = await _key_of(requests)
        async with self.database.transaction() as connection:
            upload = await begin_upload(connection, key, self.quotas)
        if upload.is_complete:
            return _response(upload)
        received = RowBuffer()
        await self._take_in(key, received, requests)
        async with self.database.transaction() as connection:
            ended = await end_upload(connection, key, received.num_refused, received.refused)
        return _response(ended)

    async def _take_in(
        self, key: UploadKey, received: RowBuffer, requests: AsyncIterator[pb.SubmitTasksetRequest]
    ) -> None:
        """Reads rows until the explicit `end`, because an aborted stream looks complete."""
        async for request in requests:
            if request.num_before != received.num_seen:
                raise InvalidRequest(
                    f"num_before is {request.num_before}, but {received.num_seen} rows have come: "
                    "send all of it again with the same request_id"
                )
            if request.WhichOneof("part") == "end":
                return await self._store(key, received)
            for row in _rows_of(request):
                await self._add(key.tenant, row, received)
                if received.is_chunk:
                    await self._store(key, received)
                elif received.num_seen % ROWS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        raise InvalidRequest(
            f"the stream stopped after {received.num_seen} rows without an `end`: send all of it "
            "again with the same request_id"
        )

    async def _add(self, tenant: str, row: str, received: RowBuffer) -> None:
        taken = await self.images.taken(row)
        for ref, content in taken.images:
            if ref.sha256 not in received.stored_media:
                await self.store_image(tenant, ref, content)
                received.stored_media.add(ref.sha256)
        received.add_row(taken.body, taken.reason, [ref.sha256 for ref, _ in taken.images])

    async def _store(self, key: UploadKey, received: RowBuffer) -> None:
        chunk = received.take_chunk()
        async with self.database.transaction() as connection:
            await store_rows(connection, key, chunk, self.quotas)


async def _key_of(requests: AsyncIterator[pb.SubmitTasksetRequest]) -> UploadKey:
    async for request in requests:
        if request.WhichOneof("part") != "header":
            break
        header = request.header
        return UploadKey(
            tenant=parse_subject_part(header.tenant, "tenant"),
            name=parse_name(header.name, "name"),
            request_id=parse_uuid(header.request_id, "request_id"),
            is_queue=header.is_queue,
        )
    raise InvalidRequest("the first message must be a header")


def _rows_of(request: pb.SubmitTasksetRequest) -> Sequence[str]:
    match request.WhichOneof("part"):
        case "row":
            return [request.row.json]
        case "rows":
            return check_max_items(request.rows.json, "rows")
        case _:
            raise InvalidRequest("only the first message is a header, others are rows or the end")


def _response(upload: StoredUpload) -> pb.SubmitTasksetResponse:
    refused = [to_message(pb.RefusedRow, row) for row in upload.refused]
    return to_message(pb.SubmitTasksetResponse, upload, refused=refused)


@dataclass(frozen=True, slots=True)
class TasksetServicer:
    """Implements trinity.api.v1.TasksetService."""

    database: BufferDatabase

    async def ListTasksets(
        self, request: taskset_pb2.ListTasksetsRequest, _: Context
    ) -> taskset_pb2.ListTasksetsResponse:
        """Returns one page of tasksets, newest first."""
        tenant = parse_subject_part(request.tenant, "tenant")
        size = _within(request.page_size, 0, MAX_PAGE, "page_size") or USUAL_PAGE
        offset = _offset_of(request.page_token)
        async with self.database.transaction() as connection:
            found = await list_tasksets(connection, tenant, limit=size + 1, offset=offset)
        page = first_within(map(_to_proto, found[:size]))
        return taskset_pb2.ListTasksetsResponse(
            tasksets=page,
            next_page_token=str(offset + len(page)) if len(found) > len(page) else "",
        )

    async def GetTaskset(
        self, request: taskset_pb2.GetTasksetRequest, _: Context
    ) -> taskset_pb2.GetTasksetResponse:
        """Returns one taskset, with some of its rows."""
        tenant = parse_subject_part(request.tenant, "tenant")
        first = _within(request.first_row, 0, MAX_ROW_NUMBER, "first_row")
        count = _within(request.num_rows, 0, MAX_SHOWN, "num_rows")
        async with self.database.transaction() as connection:
            found = await _find(connection, tenant, request.taskset)
            rows = await load_row_bodies(
                connection, tenant, found.taskset_id, first=first, count=count
            )
            numbers = await source_rows_of(
                connection, tenant, found.taskset_id, first=first, count=count
            )
        return taskset_pb2.GetTasksetResponse(
            taskset=_to_proto(found), rows=rows, source_rows=numbers[: len(rows)]
        )

    async def DeleteTaskset(
        self, request: taskset_pb2.DeleteTasksetRequest, _: Context
    ) -> taskset_pb2.DeleteTasksetResponse:
        """Deletes a taskset that no stage needs."""
        tenant = parse_subject_part(request.tenant, "tenant")
        async with self.database.transaction() as connection:
            found = await _find(connection, tenant, request.taskset, for_update=True)
            if need := await find_need(connection, tenant, found.taskset_id):
                raise PreconditionFailed(f"taskset {request.taskset} is needed: {need}")
            await delete_taskset(connection, tenant, found.taskset_id)
        return taskset_pb2.DeleteTasksetResponse(num_rows=found.num_rows)

    async def CloseQueue(
        self, request: taskset_pb2.CloseQueueRequest, _: Context
    ) -> taskset_pb2.CloseQueueResponse:
        """Closes a queue: no more tasks will be added."""
        tenant = parse_subject_part(request.tenant, "tenant")
        async with self.database.transaction() as connection:
            found = await _find(connection, tenant, request.taskset, for_update=True)
            if not found.is_queue:
                raise PreconditionFailed(f"taskset {request.taskset} is no queue")
            queue = await get_taskset(connection, tenant, found.taskset_id)
            for key in await stages_using(connection, tenant, found.taskset_id):
                if (await get_stage(connection, key)).takes_clients:
                    raise PreconditionFailed(
                        f"queue {request.taskset} is filled by clients of stage {key.stage}, which "
                        "ends with its train steps: cancel the run to end it earlier"
                    )
            await close_queue(connection, tenant, queue)
        return taskset_pb2.CloseQueueResponse(num_rows=queue.num_rows)


async def _find(
    connection: Connection, tenant: str, taskset: str, *, for_update: bool = False
) -> TasksetDescription:
    wanted = parse_name(taskset, "taskset")
    found = await find_described(connection, tenant, wanted, for_update=for_update)
    if found is None:
        raise NotFound(f"there is no taskset {wanted}")
    return found


def _within(number: int, least: int, most: int, name: str) -> int:
    if not least <= number <= most:
        raise InvalidRequest(f"{name} {number} is not in {least}..{most}")
    return number


def _offset_of(token: str) -> int:
    if not token:
        return 0
    is_offset = len(token) <= MAX_OFFSET_DIGITS and token.isascii() and token.isdigit()
    if not is_offset or int(token) > MAX_OFFSET:
        raise InvalidRequest(f"page_token {token[:60]!r} was not returned with a page")
    return int(token)


def _state(taskset: TasksetDescription) -> taskset_pb2.Taskset.State:
    if taskset.is_complete:
        return taskset_pb2.Taskset.STATE_COMPLETE
    return (
        taskset_pb2.Taskset.STATE_OPEN if taskset.is_queue else taskset_pb2.Taskset.STATE_INCOMPLETE
    )


def _to_proto(taskset: TasksetDescription) -> taskset_pb2.Taskset:
    return to_message(
        taskset_pb2.Taskset,
        taskset,
        id=taskset.taskset_id,
        state=_state(taskset),
        created_millis=int(taskset.created_at.timestamp() * 1000),
        pipeline=taskset.pipeline and pipeline_to_proto(taskset.pipeline),
    )
