"""RPC methods that manage tasksets."""

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.handlers.uploading import close_queue
from services.buffer.servicer.convert import name_of, pipeline_to_proto, subject_part_of
from services.buffer.servicer.parts import Context
from services.buffer.store.catalogue import (
    Described,
    delete_taskset,
    find_described,
    find_need,
    list_tasksets,
    rows_of,
)
from services.buffer.store.database import Database
from services.buffer.store.task_pipelines import source_rows_of
from services.buffer.store.tasks import get_taskset
from trinity.api.v1 import taskset_pb2
from trinity.errors import InvalidRequest, NotFound, PreconditionFailed

USUAL_PAGE = 100
MAX_PAGE = 1_000
MAX_OFFSET = 10**9
MAX_SHOWN = 100
MAX_ROW_NUMBER = 10**12


@dataclass(frozen=True, slots=True)
class TasksetServicer:
    """Implements trinity.api.v1.TasksetService."""

    database: Database

    async def ListTasksets(
        self, request: taskset_pb2.ListTasksetsRequest, _: Context
    ) -> taskset_pb2.ListTasksetsResponse:
        """Returns one page of tasksets, newest first."""
        tenant = subject_part_of(request.tenant, "tenant")
        size = _within(request.page_size, 0, MAX_PAGE, "page_size") or USUAL_PAGE
        offset = _offset_of(request.page_token)
        async with self.database.transaction() as connection:
            found = await list_tasksets(connection, tenant, limit=size + 1, offset=offset)
        return taskset_pb2.ListTasksetsResponse(
            tasksets=[_to_proto(taskset) for taskset in found[:size]],
            next_page_token=str(offset + size) if len(found) > size else "",
        )

    async def GetTaskset(
        self, request: taskset_pb2.GetTasksetRequest, _: Context
    ) -> taskset_pb2.GetTasksetResponse:
        """Returns one taskset, with some of its rows."""
        tenant = subject_part_of(request.tenant, "tenant")
        first = _within(request.first_row, 0, MAX_ROW_NUMBER, "first_row")
        count = _within(request.num_rows, 0, MAX_SHOWN, "num_rows")
        async with self.database.transaction() as connection:
            found = await _find(connection, tenant, request.taskset)
            rows = await rows_of(connection, tenant, found.taskset_id, first=first, count=count)
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
        tenant = subject_part_of(request.tenant, "tenant")
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
        tenant = subject_part_of(request.tenant, "tenant")
        async with self.database.transaction() as connection:
            found = await _find(connection, tenant, request.taskset, for_update=True)
            if not found.is_queue:
                raise PreconditionFailed(f"taskset {request.taskset} is no queue")
            queue = await get_taskset(connection, tenant, found.taskset_id)
            await close_queue(connection, tenant, queue)
        return taskset_pb2.CloseQueueResponse(num_rows=queue.num_rows)


async def _find(
    connection: AsyncConnection, tenant: str, taskset: str, *, for_update: bool = False
) -> Described:
    wanted = name_of(taskset, "taskset")
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
    if not (token.isascii() and token.isdigit() and int(token[:20]) <= MAX_OFFSET):
        raise InvalidRequest(f"page_token {token[:60]!r} was not returned with a page")
    return int(token)


def _state(taskset: Described) -> taskset_pb2.Taskset.State:
    if taskset.is_complete:
        return taskset_pb2.Taskset.STATE_COMPLETE
    return (
        taskset_pb2.Taskset.STATE_OPEN if taskset.is_queue else taskset_pb2.Taskset.STATE_INCOMPLETE
    )


def _to_proto(taskset: Described) -> taskset_pb2.Taskset:
    return taskset_pb2.Taskset(
        id=taskset.taskset_id,
        name=taskset.name,
        source=taskset.source,
        state=_state(taskset),
        num_rows=taskset.num_rows,
        num_refused=taskset.num_refused,
        created_millis=int(taskset.created_at.timestamp() * 1000),
        num_stages=taskset.num_stages,
        is_queue=taskset.is_queue,
        pipeline=None if taskset.pipeline is None else pipeline_to_proto(taskset.pipeline),
    )
