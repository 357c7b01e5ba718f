"""Tasksets that a client streams."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from services.buffer.servicer.convert import name_of, subject_part_of, uuid_of
from services.buffer.servicer.parts import Context, Parts
from services.buffer.store.database import notify, tasksets_topic
from services.buffer.store.tasks import (
    Taskset,
    begin_upload,
    find_taskset,
    insert_tasks,
    set_num_rows,
    take_over_upload,
)
from trinity.api.v1 import buffer_pb2 as pb
from trinity.errors import InvalidRequest, PreconditionFailed

UPLOAD_CHUNK_ROWS = 500
UPLOAD_CHUNK_LENGTH = 8 * 1024 * 1024
MAX_LISTED_REFUSALS = 1_000


@dataclass(slots=True)
class Upload:
    """Rows of a taskset as they come in; refused ones take no index."""

    taskset: Taskset
    tenant: str
    name: str
    num_accepted: int = 0
    num_seen: int = 0
    num_refused: int = 0
    refused: list[pb.RefusedRow] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    waiting_length: int = 0

    @property
    def is_chunk(self) -> bool:
        """Whether what waits is enough to be stored."""
        return len(self.waiting) >= UPLOAD_CHUNK_ROWS or self.waiting_length >= UPLOAD_CHUNK_LENGTH

    def add(self, row_json: str) -> None:
        """Take a row in, or note why not."""
        if reason := _why_refused(row_json):
            self.num_refused += 1
            if len(self.refused) < MAX_LISTED_REFUSALS:
                self.refused.append(pb.RefusedRow(index=self.num_seen, reason=reason))
        else:
            self.waiting.append(row_json)
            self.waiting_length += len(row_json)
        self.num_seen += 1


def _why_refused(row_json: str) -> str:
    try:
        row = json.loads(row_json)
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}"
    return "" if isinstance(row, dict) else "a row must be a JSON object"


class TasksetCalls(Parts):
    """SubmitTaskset."""

    async def SubmitTaskset(
        self, requests: AsyncIterator[pb.SubmitTasksetRequest], _: Context
    ) -> pb.SubmitTasksetResponse:
        """Store what a client streams, in chunks, so that a retry finds what is there."""
        header = await _header_of(requests)
        request_id = uuid_of(header.request_id, "request_id")
        upload = await self._begin_upload(header, request_id)
        if not upload.taskset.is_complete:
            async for request in requests:
                if request.WhichOneof("part") != "row":
                    raise InvalidRequest("only the first message may be a header")
                upload.add(request.row.json)
                if upload.is_chunk:
                    await self._store_chunk(upload, is_last=False)
            await self._store_chunk(upload, is_last=True)
            num_stored = upload.num_accepted
        else:
            num_stored = upload.taskset.num_rows
        return pb.SubmitTasksetResponse(
            taskset_id=upload.taskset.taskset_id,
            num_stored=num_stored,
            refused=upload.refused,
            num_refused=upload.num_refused,
        )

    async def _begin_upload(self, header: pb.TasksetHeader, request_id: str) -> Upload:
        tenant = subject_part_of(header.tenant, "tenant")
        name = name_of(header.name, "name")
        async with self.database.transaction() as connection:
            await begin_upload(connection, tenant, name, request_id)
            found = await find_taskset(connection, tenant, name=name, for_update=True)
            assert found is not None
            if found.request_id != request_id:
                if found.is_complete:
                    raise PreconditionFailed(
                        f"taskset {name} was submitted before: choose another name"
                    )
                await take_over_upload(connection, tenant, found.taskset_id, request_id)
        return Upload(
            taskset=Taskset(
                taskset_id=found.taskset_id,
                request_id=request_id,
                is_complete=found.is_complete,
                num_rows=found.num_rows,
            ),
            tenant=tenant,
            name=name,
        )

    async def _store_chunk(self, upload: Upload, *, is_last: bool) -> None:
        own_id = upload.taskset.taskset_id
        async with self.database.transaction() as connection:
            found = await find_taskset(connection, upload.tenant, name=upload.name, for_update=True)
            if found is None or found.request_id != upload.taskset.request_id:
                raise PreconditionFailed(f"another client took over the taskset {upload.name}")
            await insert_tasks(
                connection, upload.tenant, own_id, upload.num_accepted, upload.waiting
            )
            upload.num_accepted += len(upload.waiting)
            upload.waiting.clear()
            upload.waiting_length = 0
            if is_last:
                await set_num_rows(connection, upload.tenant, own_id, upload.num_accepted)
                await notify(connection, tasksets_topic(upload.tenant))


async def _header_of(requests: AsyncIterator[pb.SubmitTasksetRequest]) -> pb.TasksetHeader:
    async for request in requests:
        if request.WhichOneof("part") == "header":
            return request.header
        break
    raise InvalidRequest("the first message must be a header")
