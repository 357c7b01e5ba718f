"""Streamed uploads of content, held in memory until it is stored."""

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
"""Limit for all uploads together; when it is reached, clients retry."""
UPLOAD_SECONDS = 120.0
"""Time limit of an upload, because it takes room from others."""


@dataclass(slots=True)
class Upload:
    """Received content; its hash is not verified yet."""

    tenant: str
    sha256: bytes
    body: bytearray


class UploadRoom:
    """A memory budget for all uploads: each takes room as its chunks arrive, and returns it.

    async with room.receive(requests) as upload:
        await store(upload.tenant, upload.sha256, upload.body)
    """

    def __init__(self, max_bytes: int = MAX_UPLOADS_BYTES) -> None:
        self._left_bytes = max_bytes

    @contextlib.asynccontextmanager
    async def receive(self, requests: AsyncIterator[pb.UploadBlobRequest]) -> AsyncIterator[Upload]:
        """Receives the whole content.

        Raises: InvalidRequest for an invalid or slow upload, TooLarge when it is too large to
        store, Unavailable when there is no room.
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
