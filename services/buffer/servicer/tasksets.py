"""RPC method for tasksets that a client streams."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from services.buffer.domain.rows import Intake
from services.buffer.handlers.uploading import UploadKey, begin_upload, end_upload, store_rows
from services.buffer.servicer.convert import few_of, name_of, subject_part_of, uuid_of
from services.buffer.servicer.parts import Context, Parts
from services.buffer.store.uploads import Upload
from trinity.api.v1 import buffer_pb2 as pb
from trinity.errors import InvalidRequest

ROWS_AT_ONCE = 500
"""Number of rows to parse before yielding to other calls."""


class TasksetCalls(Parts):
    """SubmitTaskset."""

    async def SubmitTaskset(
        self, requests: AsyncIterator[pb.SubmitTasksetRequest], _: Context
    ) -> pb.SubmitTasksetResponse:
        """Stores a streamed taskset in chunks; retries continue after the stored rows."""
        key = await _key_of(requests)
        async with self.database.transaction() as connection:
            upload = await begin_upload(connection, key)
        if upload.is_complete:
            return _response(upload)
        intake = Intake()
        await self._take_in(key, intake, requests)
        async with self.database.transaction() as connection:
            ended = await end_upload(connection, key, intake.num_refused, intake.refused)
        return _response(ended)

    async def _take_in(
        self, key: UploadKey, intake: Intake, requests: AsyncIterator[pb.SubmitTasksetRequest]
    ) -> None:
        """Reads rows until the explicit `end`, because an aborted stream looks complete."""
        async for request in requests:
            if request.num_before != intake.num_seen:
                raise InvalidRequest(
                    f"num_before is {request.num_before}, but {intake.num_seen} rows have come: "
                    "send all of it again with the same request_id"
                )
            if request.WhichOneof("part") == "end":
                return await self._store(key, intake)
            for row in _rows_of(request):
                intake.add(row)
                if intake.is_chunk:
                    await self._store(key, intake)
                elif intake.num_seen % ROWS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        raise InvalidRequest(
            f"the stream stopped after {intake.num_seen} rows without an `end`: send all of it "
            "again with the same request_id"
        )

    async def _store(self, key: UploadKey, intake: Intake) -> None:
        first, bodies = intake.take()
        async with self.database.transaction() as connection:
            await store_rows(connection, key, first, bodies)


async def _key_of(requests: AsyncIterator[pb.SubmitTasksetRequest]) -> UploadKey:
    async for request in requests:
        if request.WhichOneof("part") != "header":
            break
        header = request.header
        return UploadKey(
            tenant=subject_part_of(header.tenant, "tenant"),
            name=name_of(header.name, "name"),
            request_id=uuid_of(header.request_id, "request_id"),
            is_queue=header.is_queue,
        )
    raise InvalidRequest("the first message must be a header")


def _rows_of(request: pb.SubmitTasksetRequest) -> Sequence[str]:
    match request.WhichOneof("part"):
        case "row":
            return [request.row.json]
        case "rows":
            return few_of(request.rows.json, "rows")
        case _:
            raise InvalidRequest("only the first message is a header, others are rows or the end")


def _response(upload: Upload) -> pb.SubmitTasksetResponse:
    return pb.SubmitTasksetResponse(
        taskset_id=upload.taskset_id,
        num_stored=upload.num_stored,
        refused=[pb.RefusedRow(index=row.index, reason=row.reason) for row in upload.refused],
        num_refused=upload.num_refused,
    )
