"""Asynchronous client for tasksets; it resends rows when a connection breaks."""

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
from trinity.client.packing import Row, RowPacker
from trinity.client.results import PipelineInfo, SubmitResult, TasksetInfo, TasksetState
from trinity.errors import Unauthenticated, Unavailable
from trinity.runtime.retry import Retry
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.errors import answer_of
from trinity.runtime.security.credentials import Credentials

logger = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")
CALL_SECONDS = 60.0
STALL_SECONDS = 600.0
"""Longest time without progress of an upload; a whole upload may take any time."""
PAGE_SIZE = 1_000
MAX_PAUSE_SECONDS = 5.0
STATES = {
    taskset_pb2.Taskset.STATE_INCOMPLETE: TasksetState.INCOMPLETE,
    taskset_pb2.Taskset.STATE_COMPLETE: TasksetState.COMPLETE,
    taskset_pb2.Taskset.STATE_OPEN: TasksetState.OPEN,
}


class AsyncTasksets:
    """The tasksets of one tenant at one buffer; close it when done.

    Every call raises an RpcError when it fails: NotFound, PreconditionFailed, InvalidRequest,
    Forbidden, Unauthenticated, Unavailable. Without `security`, the environment supplies
    certificates and token.
    """

    def __init__(
        self,
        address: str,
        *,
        tenant: str = "default",
        patience_seconds: float = 60.0,
        security: Credentials | None = None,
    ) -> None:
        self._channel = open_channel(address, security)
        self._buffer = buffer_pb2_grpc.BufferServiceStub(self._channel)
        self._tasksets = taskset_pb2_grpc.TasksetServiceStub(self._channel)
        self._tenant = tenant
        self._retry_seconds = patience_seconds

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
        """Closes the connection."""
        await self._channel.close()

    async def submit(
        self,
        name: str,
        rows: Iterable[Row],
        *,
        is_queue: bool = False,
        request_id: str | None = None,
    ) -> SubmitResult:
        """Stores rows under a name; returns the refused rows and the reasons.

        When the connection breaks, the upload is retried for `patience_seconds`, and as long again
        whenever it got further than before; rows are not stored twice. Rows of a one-shot iterator
        cannot be sent again: give a list. To resume in another process, give the same `request_id`
        and the rows from the first one on.

        Raises: PreconditionFailed when the name is taken, or the queue is closed.
        """
        own_id = request_id or str(uuid.uuid4())
        header = buffer_pb2.TasksetHeader(
            tenant=self._tenant, name=name, request_id=own_id, is_queue=is_queue
        )
        is_one_way = iter(rows) is rows
        retry = Retry(
            seconds=0.0 if is_one_way else self._retry_seconds,
            timeout_error=lambda reason: Unavailable(f"{reason} (request id {own_id})"),
            max_pause_seconds=MAX_PAUSE_SECONDS,
            cut_last_pause=False,
            refusals=(Unauthenticated,),
        )
        max_sent = -1
        while True:
            packer = RowPacker()
            try:
                return await self._submit(header, rows, packer)
            except Unavailable as error:
                if packer.num_sent > max_sent:
                    max_sent = packer.num_sent
                    retry.end()
                retry.record_failure(error)
                logger.info("rows are sent again", extra={"taskset": name, "why": str(error)})
            await asyncio.sleep(retry.next_pause())

    async def _submit(
        self, header: buffer_pb2.TasksetHeader, rows: Iterable[Row], packer: RowPacker
    ) -> SubmitResult:
        messages = packer.messages(rows)
        call = self._buffer.SubmitTaskset()
        try:
            await _in_time(call.write(buffer_pb2.SubmitTasksetRequest(header=header)))
            for message in messages:
                await _in_time(call.write(message))
            await _in_time(call.done_writing())
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            pass  # it has ended early: the answer says why
        except BaseException:
            call.cancel()
            raise
        answer: buffer_pb2.SubmitTasksetResponse = await _in_time(answer_of(call))
        for _ in messages:
            pass  # rows that were not sent are counted as well
        return SubmitResult(
            taskset_id=answer.taskset_id,
            request_id=header.request_id,
            num_stored=answer.num_stored,
            num_refused=answer.num_refused + packer.num_left_out,
            refused=packer.refused(answer),
        )

    async def list(self) -> list[TasksetInfo]:
        """Returns all tasksets of the tenant, the newest first."""
        found: list[TasksetInfo] = []
        token = ""
        while True:
            request = taskset_pb2.ListTasksetsRequest(
                tenant=self._tenant, page_size=PAGE_SIZE, page_token=token
            )
            page: taskset_pb2.ListTasksetsResponse = await answer_of(
                self._tasksets.ListTasksets(request, timeout=CALL_SECONDS)
            )
            found += [_info(taskset, ()) for taskset in page.tasksets]
            if not (token := page.next_page_token):
                return found

    async def get(self, taskset: str, *, first_row: int = 0, num_rows: int = 0) -> TasksetInfo:
        """Returns one taskset, by name or id, with some of its rows, at most 100."""
        request = taskset_pb2.GetTasksetRequest(
            tenant=self._tenant, taskset=taskset, first_row=first_row, num_rows=num_rows
        )
        answer: taskset_pb2.GetTasksetResponse = await answer_of(
            self._tasksets.GetTaskset(request, timeout=CALL_SECONDS)
        )
        return _info(answer.taskset, answer.rows, answer.source_rows)

    async def delete(self, taskset: str) -> int:
        """Deletes a taskset; returns how many rows it had.

        Raises: PreconditionFailed naming a stage that needs it.
        """
        request = taskset_pb2.DeleteTasksetRequest(tenant=self._tenant, taskset=taskset)
        answer: taskset_pb2.DeleteTasksetResponse = await answer_of(
            self._tasksets.DeleteTaskset(request, timeout=CALL_SECONDS)
        )
        return answer.num_rows

    async def close_queue(self, taskset: str) -> int:
        """Closes a queue to further tasks; returns how many it had in all."""
        request = taskset_pb2.CloseQueueRequest(tenant=self._tenant, taskset=taskset)
        answer: taskset_pb2.CloseQueueResponse = await answer_of(
            self._tasksets.CloseQueue(request, timeout=CALL_SECONDS)
        )
        return answer.num_rows


async def _in_time(step: Awaitable[ValueT]) -> ValueT:
    """Awaits one step of an upload with a time limit."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            return await step
    except TimeoutError:
        raise Unavailable(f"the buffer accepted nothing for {STALL_SECONDS:g} s") from None


def _info(
    taskset: taskset_pb2.Taskset, rows: Iterable[str], source_rows: Iterable[int] = ()
) -> TasksetInfo:
    return TasksetInfo(
        taskset_id=taskset.id,
        name=taskset.name,
        source=taskset.source,
        state=STATES[taskset.state],
        is_queue=taskset.is_queue,
        num_rows=taskset.num_rows,
        num_refused=taskset.num_refused,
        num_stages=taskset.num_stages,
        created_at=datetime.fromtimestamp(taskset.created_millis / 1000, UTC),
        rows=tuple(json.loads(row) for row in rows),
        source_rows=tuple(source_rows),
        pipeline=_pipeline(taskset.pipeline) if taskset.HasField("pipeline") else None,
    )


def _pipeline(counts: taskset_pb2.TaskPipelineCounts) -> PipelineInfo:
    return PipelineInfo(
        num_read=counts.num_read,
        left_out={group.reason: group.num_rows for group in counts.left_out},
        ordered_by=dict(counts.ordered_by),
    )
