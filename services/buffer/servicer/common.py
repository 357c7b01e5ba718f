"""Parts that the RPC methods share: long polls, blob uploads, their base class."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import grpc

from services.buffer.ingest.stream import RunStream
from services.buffer.operations.batching import BatchComposer
from services.buffer.servicer.convert import (
    parse_media_type,
    parse_sha256,
    parse_subject_part,
)
from services.buffer.sink.writer import ExperienceSinkWriter
from services.buffer.store.database import BufferDatabase
from services.buffer.store.media import store_media
from services.buffer.store.quotas import BufferQuotas
from services.buffer.tasksets.library import FeatureLibrary, TasksetLibrary
from services.buffer.tasksets.task_pipeline import SubmittedImages
from services.buffer.workers.functions import FunctionRunner
from trinity.api.v1 import buffer_pb2 as pb
from trinity.errors import InvalidRequest, TooLarge, Unavailable
from trinity.runtime.notifications import Listener
from trinity.runtime.rpc.answers import ANSWER_BYTES
from trinity.runtime.rpc.limits import CHUNK_BYTES
from trinity.runtime.rpc.quotas import QuotaUse
from trinity.types import BlobRef

ValueT = TypeVar("ValueT")
KEEP_LOOKING_SECONDS = 30.0
"""A stream looks again after this long even without a notification."""
Context: TypeAlias = grpc.aio.ServicerContext
MAX_BLOB_BYTES = 64 * 1024 * 1024
MAX_UPLOADS_BYTES = 4 * MAX_BLOB_BYTES
"""Limit for all uploads together; when it is reached, clients retry."""
UPLOAD_SECONDS = 120.0
"""Time limit of an upload, because it takes room from others."""


@dataclass(frozen=True, slots=True)
class Look(Generic[ValueT]):
    """The result of one look on behalf of a waiting caller."""

    answer: ValueT
    is_final: bool
    """True if waiting cannot give a better answer."""
    look_again_seconds: float | None = None
    """Delay after which to look again even without a notification."""


class LongPoller:
    """Waits for notifications of the database; `close` ends all waits, so that shutdown is fast."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._is_closing = False

    def stop_polling(self) -> None:
        """Ends every wait in progress with its current answer."""
        self._is_closing = True
        self._listener.wake_all()

    async def poll_until_final(
        self, topic: str, wait_seconds: float, look: Callable[[], Awaitable[Look[ValueT]]]
    ) -> ValueT:
        """Looks until an answer is final or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        with self._listener.subscribe(topic) as changes:
            while True:
                seen = await look()
                seconds_left = deadline - loop.time()
                if seen.is_final or seconds_left <= 0 or self._is_closing:
                    return seen.answer
                if seen.look_again_seconds is not None:
                    seconds_left = min(seconds_left, seen.look_again_seconds + 0.01)
                await changes.wait(seconds_left)

    async def notifications(self, topic: str) -> AsyncIterator[None]:
        """Yields once at the start, then whenever something may have changed, until closed."""
        with self._listener.subscribe(topic) as changes:
            while not self._is_closing:
                yield
                await changes.wait(KEEP_LOOKING_SECONDS)
        raise Unavailable("the buffer is stopping")


@dataclass(slots=True)
class BlobUpload:
    """Received content; its hash is not verified yet."""

    tenant: str
    sha256: bytes
    body: bytearray
    media_type: str = ""


class UploadMemoryBudget:
    """A memory budget for all uploads: each takes room as its chunks arrive, and returns it.

    async with room.receive(requests) as upload:
        await store(upload.tenant, upload.sha256, upload.body)
    """

    def __init__(
        self, max_bytes: int = MAX_UPLOADS_BYTES, of_tenants: QuotaUse | None = None
    ) -> None:
        self._left_bytes = max_bytes
        self._of_tenants = of_tenants

    @contextlib.asynccontextmanager
    async def receive(
        self, requests: AsyncIterator[pb.UploadBlobRequest]
    ) -> AsyncIterator[BlobUpload]:
        """Receives the whole content.

        Raises: InvalidRequest for an invalid or slow upload, TooLarge when it is too large to
        store, Unavailable when there is no room, QuotaExceeded when its tenant takes too much.
        """
        upload = BlobUpload("", b"", bytearray())
        try:
            await self._receive_in_time(requests, upload)
            yield upload
        finally:
            self._left_bytes += len(upload.body)
            if self._of_tenants is not None:
                self._of_tenants.give_back(upload.tenant, len(upload.body))

    async def _receive_in_time(
        self, requests: AsyncIterator[pb.UploadBlobRequest], upload: BlobUpload
    ) -> None:
        try:
            async with asyncio.timeout(UPLOAD_SECONDS):
                await self._receive(requests, upload)
        except TimeoutError as error:
            raise InvalidRequest(f"the upload took longer than {UPLOAD_SECONDS:.0f} s") from error

    async def _receive(
        self, requests: AsyncIterator[pb.UploadBlobRequest], upload: BlobUpload
    ) -> None:
        async for request in requests:
            if not upload.tenant:
                upload.sha256 = parse_sha256(request.sha256, "sha256")
                upload.tenant = parse_subject_part(request.tenant, "tenant")
                upload.media_type = parse_media_type(request.media_type)
            self._take(request.chunk, upload)
        if not upload.tenant:
            raise InvalidRequest("the first message must name tenant and sha256")

    def _take(self, chunk: bytes, upload: BlobUpload) -> None:
        body = upload.body
        if len(chunk) > CHUNK_BYTES:
            raise TooLarge(f"a chunk is longer than {CHUNK_BYTES} bytes")
        if len(body) + len(chunk) > MAX_BLOB_BYTES:
            raise TooLarge(f"a blob may have at most {MAX_BLOB_BYTES} bytes")
        if len(chunk) > self._left_bytes:
            raise Unavailable("too many uploads at once: try again after a pause")
        if self._of_tenants is not None:
            self._of_tenants.take(upload.tenant, len(chunk))
        self._left_bytes -= len(chunk)
        body += chunk


def by_size(rows: Sequence[ValueT], size_of: Callable[[ValueT], int]) -> Iterator[Sequence[ValueT]]:
    """Splits rows in order into parts whose contents fit into a message, at least one in each."""
    part: list[ValueT] = []
    num_bytes = 0
    for row in rows:
        size = size_of(row)
        if part and num_bytes + size > ANSWER_BYTES:
            yield part
            part, num_bytes = [], 0
        part.append(row)
        num_bytes += size
    if part:
        yield part


@dataclass(frozen=True, kw_only=True)
class BufferServicerBase:
    """Base of the classes of RPC methods that together make up the servicer."""

    database: BufferDatabase
    poller: LongPoller
    library: TasksetLibrary
    features: FeatureLibrary
    composer: BatchComposer
    functions: FunctionRunner
    priorities: FunctionRunner
    stream: RunStream
    uploads: UploadMemoryBudget
    quotas: BufferQuotas
    sinks: ExperienceSinkWriter
    images: SubmittedImages

    async def store_image(self, tenant: str, ref: BlobRef, content: bytes) -> None:
        """Stores an image that a tenant sent.

        Raises: QuotaExceeded.
        """
        async with self.database.transaction() as connection:
            await self.quotas.check_media(connection, tenant, ref.sha256, ref.size)
            await store_media(connection, tenant, ref, content)
