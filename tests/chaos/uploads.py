"""A client who brings tasksets, is cut off in the midst, and sends the same again or never."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc

from tests.chaos.aging import age_taskset
from tests.chaos.folder import FaultsFolder
from trinity.api.v1 import buffer_pb2, taskset_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.taskset_pb2_grpc import TasksetServiceStub
from trinity.runtime.rpc.channel import open_channel

UPLOADED, TASKSET_DELETED, ABANDONED = "uploaded", "taskset-deleted", "abandoned"
DELETION_ASKED = "taskset-deletion-asked"
"""Of a taskset that is deleted, or not, when the client does not hear the answer."""
CALL_SECONDS = 15.0
LOOK_SECONDS = 0.1
NUM_ROWS = 1_100
"""Stored in three transactions."""
ROWS_A_MESSAGE = 100
CUT_AFTER = 700
"""Rows, after which the first attempt ends without a word."""
NOT_A_TASK = "[]"
GONE = -1
"""The number of rows that are told of a taskset that is there no more."""


def row(name: str, number: int) -> str:
    """The row of a taskset."""
    return json.dumps({"prompt": f"{name}: {number}+{number}="})


@dataclass(kw_only=True)
class Uploader:
    """Brings one taskset after the other: wholes and queues, some are deleted, some never end."""

    folder: FaultsFolder
    buffer: str
    database: str
    tenant: str
    experiment_id: str
    _request_ids: dict[str, str] = field(default_factory=dict)
    _abandoned: dict[str, str] = field(default_factory=dict)
    """Ids of the tasksets whose upload is not gone on with, by their names."""
    _num_brought: int = 0

    async def bring(self) -> None:
        """The next taskset, or the one that did not come to its end the last time."""
        number = self._num_brought
        name = f"visit-{self.experiment_id[:8]}-{number}"
        async with open_channel(self.buffer) as channel:
            stub, look = BufferServiceStub(channel), TasksetServiceStub(channel)
            if number % 4 == 2:
                await self._abandon(stub, look, name)
            else:
                await self._bring_whole(stub, look, name, number)
        self._num_brought += 1

    async def _bring_whole(
        self, stub: BufferServiceStub, look: TasksetServiceStub, name: str, number: int
    ) -> None:
        await self._submit(stub, name, is_queue=number % 2 == 1)
        if number % 2 == 1:
            closing = taskset_pb2.CloseQueueRequest(tenant=self.tenant, taskset=name)
            await look.CloseQueue(closing, timeout=CALL_SECONDS)
        if number % 3 == 1:
            self._note(DELETION_ASKED, name)
            deleting = taskset_pb2.DeleteTasksetRequest(tenant=self.tenant, taskset=name)
            await look.DeleteTaskset(deleting, timeout=CALL_SECONDS)
            self._note(TASKSET_DELETED, name, num_rows=GONE)

    async def _abandon(self, stub: BufferServiceStub, look: TasksetServiceStub, name: str) -> None:
        """Begin what nobody goes on with, and wait until it is gone."""
        if name not in self._abandoned:
            taskset_id = await self._begin(stub, look, name)
            await age_taskset(self.database, taskset_id)
            self._abandoned[name] = taskset_id
        while await self._find(look, name) is not None:  # noqa: ASYNC110  # another process
            await asyncio.sleep(LOOK_SECONDS)
        self._note(ABANDONED, name, taskset_id=self._abandoned[name], num_rows=GONE)

    async def _begin(self, stub: BufferServiceStub, look: TasksetServiceStub, name: str) -> str:
        """Send rows until some are stored; answers the taskset's id."""
        call = stub.SubmitTaskset(timeout=CALL_SECONDS)
        try:
            async for message in _messages(self._header(name, is_queue=False), CUT_AFTER):
                if not message.HasField("end"):
                    await call.write(message)
            while (found := await self._find(look, name)) is None or not found.num_rows:
                if call.done():
                    raise asyncio.InvalidStateError("whoever stored it has died")
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            call.cancel()
        return str(found.id)

    async def _find(self, look: TasksetServiceStub, name: str) -> taskset_pb2.Taskset | None:
        request = taskset_pb2.GetTasksetRequest(tenant=self.tenant, taskset=name)
        try:
            answer = await look.GetTaskset(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        found: taskset_pb2.Taskset = answer.taskset
        return found

    def _header(self, name: str, *, is_queue: bool) -> buffer_pb2.TasksetHeader:
        own_id = self._request_ids.setdefault(name, str(uuid.uuid4()))
        return buffer_pb2.TasksetHeader(
            tenant=self.tenant, name=name, request_id=own_id, is_queue=is_queue
        )

    async def _submit(self, stub: BufferServiceStub, name: str, *, is_queue: bool) -> None:
        is_first = name not in self._request_ids
        header = self._header(name, is_queue=is_queue)
        if is_first:
            await self._cut_off(stub, header)
        answer = await stub.SubmitTaskset(_messages(header, NUM_ROWS), timeout=CALL_SECONDS)
        self._note(UPLOADED, name, taskset_id=answer.taskset_id, num_rows=answer.num_stored)

    async def _cut_off(self, stub: BufferServiceStub, header: buffer_pb2.TasksetHeader) -> None:
        call = stub.SubmitTaskset(timeout=CALL_SECONDS)
        async for message in _messages(header, CUT_AFTER):
            if not message.HasField("end"):
                await call.write(message)
        call.cancel()

    def _note(self, journal: str, name: str, **line: object) -> None:
        self.folder.log(journal, {"experiment_id": self.experiment_id, "name": name, **line})


async def _messages(
    header: buffer_pb2.TasksetHeader, num_rows: int
) -> AsyncIterator[buffer_pb2.SubmitTasksetRequest]:
    """Rows in their order, a wrong one in front."""
    yield buffer_pb2.SubmitTasksetRequest(header=header)
    yield buffer_pb2.SubmitTasksetRequest(rows=buffer_pb2.TaskRows(json=[NOT_A_TASK]))
    for first in range(0, num_rows, ROWS_A_MESSAGE):
        rows = [row(header.name, first + place) for place in range(ROWS_A_MESSAGE)]
        yield buffer_pb2.SubmitTasksetRequest(
            rows=buffer_pb2.TaskRows(json=rows), num_before=1 + first
        )
    yield buffer_pb2.SubmitTasksetRequest(end=buffer_pb2.TasksetEnd(), num_before=1 + num_rows)
