"""Parts that the RPC methods share: long polls, blob uploads, their base class."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

import grpc

from services.buffer.ingest.stream import RunStream
from services.buffer.operations.batching import BatchComposer
from services.buffer.servicer.convert import parse_sha256, parse_subject_part
from services.buffer.store.database import BufferDatabase
from services.buffer.store.quotas import TenantQuotas
from services.buffer.tasksets.library import FeatureLibrary, TasksetLibrary
from services.buffer.workers.functions import FunctionRunner, PriorityRunner
from trinity.api.v1 import buffer_pb2 as pb
from trinity.errors import InvalidRequest, TooLarge, Unavailable
from trinity.rpc.limits import CHUNK_BYTES
from trinity.runtime.notifications import Listener, Subscription

T = TypeVar("T")
AnswerT = TypeVar("AnswerT", covariant=True)
KEEP_LOOKING_SECONDS = 30.0
"""A stream looks again after this long even without a notification."""


class PollResult(Protocol[AnswerT]):
    """The result of one look at what a caller waits for."""

    @property
    def answer(self) -> AnswerT:
        """The current answer."""

    @property
    def is_final(self) -> bool:
        """True if waiting cannot give a better answer."""

    @property
    def look_again_seconds(self) -> float | None:
        """Delay after which to look again even without a notification."""


class LongPoller:
    """Waits for notifications of the database; `close` ends all waits, so that shutdown is fast."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._closing = asyncio.Event()

    def stop_polling(self) -> None:
        """Ends every wait in progress with its current answer."""
        self._closing.set()

    async def poll_until_final(
        self, topic: str, wait_seconds: float, look: Callable[[], Awaitable[PollResult[T]]]
    ) -> T:
        """Looks until an answer is final or the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        with self._listener.subscribe(topic) as changes:
            while True:
                seen = await look()
                seconds_left = deadline - loop.time()
                if seen.is_final or seconds_left <= 0 or self._closing.is_set():
                    return seen.answer
                if seen.look_again_seconds is not None:
                    seconds_left = min(seconds_left, seen.look_again_seconds + 0.01)
                await self._wait(changes, seconds_left)

    async def notifications(self, topic: str) -> AsyncIterator[None]:
        """Yields once at the start, then whenever something may have changed, until closed."""
        with self._listener.subscribe(topic) as changes:
            while not self._closing.is_set():
                yield
                await self._wait(changes, KEEP_LOOKING_SECONDS)
        raise Unavailable("the buffer is stopping")

    async def _wait(self, changes: Subscription, seconds: float) -> None:
        closing = asyncio.ensure_future(self._closing.wait())
        changed = asyncio.ensure_future(changes.wait(seconds))
        try:
            await asyncio.wait({closing, changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in (closing, changed):
                waiter.cancel()
            await asyncio.gather(closing, changed, return_exceptions=True)


MAX_BLOB_BYTES = 64 * 1024 * 1024
MAX_UPLOADS_BYTES = 4 * MAX_BLOB_BYTES
"""Limit for all uploads together; when it is reached, clients retry."""
UPLOAD_SECONDS = 120.0
"""Time limit of an upload, because it takes room from others."""


@dataclass(slots=True)
class BlobUpload:
    """Received content; its hash is not verified yet."""

    tenant: str
    sha256: bytes
    body: bytearray


class UploadMemoryBudget:
    """A memory budget for all uploads: each takes room as its chunks arrive, and returns it.

    async with room.receive(requests) as upload:
        await store(upload.tenant, upload.sha256, upload.body)
    """

    def __init__(self, max_bytes: int = MAX_UPLOADS_BYTES) -> None:
        self._left_bytes = max_bytes

    @contextlib.asynccontextmanager
    async def receive(
        self, requests: AsyncIterator[pb.UploadBlobRequest]
    ) -> AsyncIterator[BlobUpload]:
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
    ) -> BlobUpload:
        try:
            async with asyncio.timeout(UPLOAD_SECONDS):
                return await self._receive(requests, body)
        except TimeoutError as error:
            raise InvalidRequest(f"the upload took longer than {UPLOAD_SECONDS:.0f} s") from error

    async def _receive(
        self, requests: AsyncIterator[pb.UploadBlobRequest], body: bytearray
    ) -> BlobUpload:
        upload: BlobUpload | None = None
        async for request in requests:
            if upload is None:
                tenant = parse_subject_part(request.tenant, "tenant")
                upload = BlobUpload(tenant, parse_sha256(request.sha256, "sha256"), body)
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


BYTES_PER_MESSAGE = 8 * 1024 * 1024


def by_size(rows: Sequence[T], size_of: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Splits rows in order into parts whose contents fit into a message, at least one in each."""
    part: list[T] = []
    num_bytes = 0
    for row in rows:
        size = size_of(row)
        if part and num_bytes + size > BYTES_PER_MESSAGE:
            yield part
            part, num_bytes = [], 0
        part.append(row)
        num_bytes += size
    if part:
        yield part


Context: TypeAlias = grpc.aio.ServicerContext


@dataclass(frozen=True, kw_only=True)
class BufferServicerBase:
    """Base of the classes of RPC methods that together make up the servicer."""

    database: BufferDatabase
    poller: LongPoller
    library: TasksetLibrary
    features: FeatureLibrary
    composer: BatchComposer
    functions: FunctionRunner
    priorities: PriorityRunner
    stream: RunStream
    uploads: UploadMemoryBudget = field(default_factory=UploadMemoryBudget)
    quotas: TenantQuotas = field(default_factory=TenantQuotas)
