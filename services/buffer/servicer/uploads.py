"""Content that clients stream, in memory until it is stored."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from services.buffer.servicer.convert import hash_of, subject_part_of
from trinity.api.v1 import buffer_pb2 as pb
from trinity.errors import InvalidRequest, TooLarge, Unavailable
from trinity.rpc.limits import CHUNK_BYTES

MAX_BLOB_BYTES = 64 * 1024 * 1024
MAX_UPLOADS_BYTES = 4 * MAX_BLOB_BYTES
"""Of all uploads together; who comes when it is full tries again."""
UPLOAD_SECONDS = 120.0
"""An upload that takes longer keeps others from theirs."""


@dataclass(slots=True)
class Upload:
    """Content as it came; whether it has this hash is not known yet."""

    tenant: str
    sha256: bytes
    body: bytearray


class UploadRoom:
    """What all uploads together may hold: each takes room as its chunks come and gives it back.

    async with room.receive(requests) as upload:
        await store(upload.tenant, upload.sha256, upload.body)
    """

    def __init__(self, max_bytes: int = MAX_UPLOADS_BYTES) -> None:
        self._left_bytes = max_bytes

    @contextlib.asynccontextmanager
    async def receive(self, requests: AsyncIterator[pb.UploadBlobRequest]) -> AsyncIterator[Upload]:
        """The whole content.

        Raises: InvalidRequest for what is no upload, TooLarge for what may not be stored,
        Unavailable when there is no room.
        """
        body = bytearray()
        try:
            yield await self._receive_in_time(requests, body)
        finally:
            self._left_bytes += len(body)

    async def _receive_in_time(
        self, requests: AsyncIterator[pb.UploadBlobRequest], body: bytearray
    ) -> Upload:
        try:
            async with asyncio.timeout(UPLOAD_SECONDS):
                return await self._receive(requests, body)
        except TimeoutError as error:
            raise InvalidRequest(f"the upload took longer than {UPLOAD_SECONDS:.0f} s") from error

    async def _receive(
        self, requests: AsyncIterator[pb.UploadBlobRequest], body: bytearray
    ) -> Upload:
        upload: Upload | None = None
        async for request in requests:
            if upload is None:
                tenant = subject_part_of(request.tenant, "tenant")
                upload = Upload(tenant, hash_of(request.sha256, "sha256"), body)
            self._take(request.chunk, body)
        if upload is None:
            raise InvalidRequest("the first message must name tenant and sha256")
        return upload

    def _take(self, chunk: bytes, body: bytearray) -> None:
        if len(chunk) > CHUNK_BYTES:
            raise TooLarge(f"a chunk is longer than {CHUNK_BYTES} bytes")
        if len(body) + len(chunk) > MAX_BLOB_BYTES:
            raise TooLarge(f"a blob may have at most {MAX_BLOB_BYTES} bytes")
        if len(chunk) > self._left_bytes:
            raise Unavailable("too many uploads at once: try again after a pause")
        self._left_bytes -= len(chunk)
        body += chunk
