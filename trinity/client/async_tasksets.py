"""Tasksets from asyncio code."""

import asyncio
import json
import logging
import uuid
from collections.abc import Awaitable, Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self, TypeVar

import grpc

from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc, taskset_pb2, taskset_pb2_grpc
from trinity.client.packing import Packer, Row
from trinity.client.resending import Resending
from trinity.client.results import PipelineInfo, Submission, TasksetInfo, TasksetState
from trinity.errors import Unauthenticated, Unavailable
from trinity.rpc.channel import open_channel
from trinity.rpc.errors import error_of
from trinity.security.folder import Security

logger = logging.getLogger(__name__)

T = TypeVar("T")
CALL_SECONDS = 60.0
STALL_SECONDS = 600.0
"""Longest that the buffer may take none of an upload's rows; the whole of it may take any time."""
PAGE_SIZE = 1_000

STATES = {
    taskset_pb2.Taskset.STATE_INCOMPLETE: TasksetState.INCOMPLETE,
    taskset_pb2.Taskset.STATE_COMPLETE: TasksetState.COMPLETE,
    taskset_pb2.Taskset.STATE_OPEN: TasksetState.OPEN,
}


class AsyncTasksets:
    """The tasksets of one tenant at one buffer; close it when done.

    Every call raises an RpcError when it fails: NotFound, PreconditionFailed, InvalidRequest,
    Forbidden, Unauthenticated, Unavailable. Without `security` certificates and token are those of
    the environment.
    """

    def __init__(
        self,
        address: str,
        *,
        tenant: str = "default",
        patience_seconds: float = 60.0,
        security: Security | None = None,
    ) -> None:
        self._channel = open_channel(address, security)
        self._buffer = buffer_pb2_grpc.BufferServiceStub(self._channel)
        self._tasksets = taskset_pb2_grpc.TasksetServiceStub(self._channel)
        self._tenant = tenant
        self._patience_seconds = patience_seconds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()

    async def submit(
        self,
        name: str,
        rows: Iterable[Row],
        *,
        is_queue: bool = False,
        request_id: str | None = None,
    ) -> Submission:
        """Store rows under a name; says which of them were refused, and why.

        When the connection breaks, the same is sent again for `patience_seconds`, and as long again
        whenever it came further than before, which stores nothing twice. Rows that can be gone
        through only once cannot be sent again: give a list. To go on in another process, give the
        same `request_id`, the rows from the first one on.

        Raises: PreconditionFailed when the name is taken, or the queue is closed.
        """
        own_id = request_id or str(uuid.uuid4())
        header = buffer_pb2.TasksetHeader(
            tenant=self._tenant, name=name, request_id=own_id, is_queue=is_queue
        )
        is_one_way = iter(rows) is rows
        resending = Resending(0.0 if is_one_way else self._patience_seconds)
        while True:
            packer = Packer()
            try:
                return await self._submit(header, rows, packer)
            except Unauthenticated:
                raise
            except Unavailable as error:
                pause = resending.pause(packer.num_sent)
                if pause is None:
                    raise Unavailable(f"{error} (request id {own_id})") from error
                logger.info("rows are sent again", extra={"taskset": name, "why": str(error)})
            await asyncio.sleep(pause)

    async def _submit(
        self, header: buffer_pb2.TasksetHeader, rows: Iterable[Row], packer: Packer
    ) -> Submission:
        messages = packer.messages(rows)
        call = self._buffer.SubmitTaskset()
        try:
            await _in_time(call.write(buffer_pb2.SubmitTasksetRequest(header=header)))
            for message in messages:
                await _in_time(call.write(message))
            await _in_time(call.done_writing())
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            pass  # it has ended before its time: the answer says why
        except BaseException:
            call.cancel()
            raise
        answer: buffer_pb2.SubmitTasksetResponse = await _in_time(_call(call))
        for _ in messages:
            pass  # what was not sent is counted all the same
        return Submission(
            taskset_id=answer.taskset_id,
            request_id=header.request_id,
            num_stored=answer.num_stored,
            num_refused=answer.num_refused + packer.num_left_out,
            refused=packer.refused(answer),
        )

    async def list(self) -> list[TasksetInfo]:
        """All tasksets of the tenant, the newest first."""
        found: list[TasksetInfo] = []
        token = ""
        while True:
            request = taskset_pb2.ListTasksetsRequest(
                tenant=self._tenant, page_size=PAGE_SIZE, page_token=token
            )
            page: taskset_pb2.ListTasksetsResponse = await _call(
                self._tasksets.ListTasksets(request, timeout=CALL_SECONDS)
            )
            found += [_info(one, ()) for one in page.tasksets]
            if not (token := page.next_page_token):
                return found

    async def get(self, taskset: str, *, first_row: int = 0, num_rows: int = 0) -> TasksetInfo:
        """One taskset, by its name or its id, with some of its rows, 100 at the most."""
        request = taskset_pb2.GetTasksetRequest(
            tenant=self._tenant, taskset=taskset, first_row=first_row, num_rows=num_rows
        )
        answer: taskset_pb2.GetTasksetResponse = await _call(
            self._tasksets.GetTaskset(request, timeout=CALL_SECONDS)
        )
        return _info(answer.taskset, answer.rows, answer.source_rows)

    async def delete(self, taskset: str) -> int:
        """Delete a taskset; answers how many rows it had.

        Raises: PreconditionFailed naming a stage that needs it.
        """
        request = taskset_pb2.DeleteTasksetRequest(tenant=self._tenant, taskset=taskset)
        answer: taskset_pb2.DeleteTasksetResponse = await _call(
            self._tasksets.DeleteTaskset(request, timeout=CALL_SECONDS)
        )
        return answer.num_rows

    async def close_queue(self, taskset: str) -> int:
        """Say that a queue gets no more tasks; answers how many it had in all."""
        request = taskset_pb2.CloseQueueRequest(tenant=self._tenant, taskset=taskset)
        answer: taskset_pb2.CloseQueueResponse = await _call(
            self._tasksets.CloseQueue(request, timeout=CALL_SECONDS)
        )
        return answer.num_rows


async def _call(call: Awaitable[T]) -> T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from error


async def _in_time(step: Awaitable[T]) -> T:
    """One step of an upload."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            return await step
    except TimeoutError:
        raise Unavailable(f"the buffer took nothing for {STALL_SECONDS:g} s") from None


def _info(
    one: taskset_pb2.Taskset, rows: Iterable[str], source_rows: Iterable[int] = ()
) -> TasksetInfo:
    return TasksetInfo(
        taskset_id=one.id,
        name=one.name,
        source=one.source,
        state=STATES[one.state],
        is_queue=one.is_queue,
        num_rows=one.num_rows,
        num_refused=one.num_refused,
        num_stages=one.num_stages,
        created_at=datetime.fromtimestamp(one.created_millis / 1000, UTC),
        rows=tuple(json.loads(row) for row in rows),
        source_rows=tuple(source_rows),
        pipeline=_pipeline(one.pipeline) if one.HasField("pipeline") else None,
    )


def _pipeline(counts: taskset_pb2.TaskPipelineCounts) -> PipelineInfo:
    return PipelineInfo(
        num_read=counts.num_read,
        left_out={one.reason: one.num_rows for one in counts.left_out},
        ordered_by=dict(counts.ordered_by),
    )
