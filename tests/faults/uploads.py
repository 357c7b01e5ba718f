"""A client who brings tasksets, is cut off in the midst, and sends the same again."""

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tests.faults.folder import FaultsFolder
from trinity.api.v1 import buffer_pb2, taskset_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.taskset_pb2_grpc import TasksetServiceStub
from trinity.rpc.channel import open_channel

UPLOADED, TASKSET_DELETED = "uploaded", "taskset-deleted"
CALL_SECONDS = 15.0
NUM_ROWS = 1_100
"""Stored in three transactions."""
ROWS_A_MESSAGE = 100
CUT_AFTER = 700
"""Rows, after which the first attempt ends without a word."""
NOT_A_TASK = "[]"


def row(name: str, number: int) -> str:
    """The row of a taskset."""
    return json.dumps({"prompt": f"{name}: {number}+{number}="})


@dataclass
class Uploader:
    """Brings one taskset after the other; every second one is a queue, some are deleted."""

    folder: FaultsFolder
    buffer: str
    tenant: str
    experiment_id: str
    _request_ids: dict[str, str] = field(default_factory=dict)
    _num_brought: int = 0

    async def bring(self) -> None:
        """The next taskset, or the one that did not come to its end the last time."""
        number = self._num_brought
        name = f"visit-{self.experiment_id[:8]}-{number}"
        async with open_channel(self.buffer) as channel:
            await self._submit(BufferServiceStub(channel), name, is_queue=number % 2 == 1)
            look = TasksetServiceStub(channel)
            if number % 2 == 1:
                closing = taskset_pb2.CloseQueueRequest(tenant=self.tenant, taskset=name)
                await look.CloseQueue(closing, timeout=CALL_SECONDS)
            if number % 3 == 1:
                deleting = taskset_pb2.DeleteTasksetRequest(tenant=self.tenant, taskset=name)
                await look.DeleteTaskset(deleting, timeout=CALL_SECONDS)
                self._note(TASKSET_DELETED, name)
        self._num_brought += 1

    async def _submit(self, stub: BufferServiceStub, name: str, *, is_queue: bool) -> None:
        is_first = name not in self._request_ids
        own_id = self._request_ids.setdefault(name, str(uuid.uuid4()))
        header = buffer_pb2.TasksetHeader(
            tenant=self.tenant, name=name, request_id=own_id, is_queue=is_queue
        )
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
