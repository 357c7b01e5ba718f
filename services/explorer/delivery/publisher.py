"""Sends results in batches to the buffer through JetStream, each until its outcome is reported."""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from nats.aio.client import Client
from nats.errors import BadSubjectError, MaxPayloadError
from nats.errors import Error as NatsError

from services.explorer.delivery.outbox import Outbox, PendingResult
from services.explorer.telemetry import send_span
from services.explorer.types import CommitOutcome, ResultReport
from trinity.api.v1.experience_pb2 import RunResultBatch
from trinity.data.codec_checks import encode_repeated_field
from trinity.errors import InvalidRequest, QuotaExceeded, RpcError, Unavailable
from trinity.runtime.nats import connect, fault_of_broker, preserve_cancellation
from trinity.runtime.subjects import runs_subject
from trinity.runtime.telemetry import tracing

logger = logging.getLogger(__name__)


MAX_RESULTS = 64
MAX_BYTES = 1 << 20
"""Limit of the broker; larger content is uploaded to the buffer and sent as a reference."""
ROOM_BYTES = MAX_BYTES - (16 << 10)
FRAME_BYTES = 1 << 10
"""Overhead of a message, so that only a single result can be too large for it."""
LINGER_SECONDS = 0.01
MAX_IN_FLIGHT = 16
"""Messages sent and not yet acknowledged by the broker."""
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 0.5
RESEND_CHECK_SECONDS = 0.5
SETTING = "TRINITY_EXPLORER_NATS_URL"
PUBLISH_SECONDS = 5.0


class Broker(Protocol):
    """Publishes messages."""

    def on_return(self, listener: Callable[[], None]) -> None:
        """Registers `listener` to be called whenever the broker is back."""
        ...

    async def publish(self, subject: str, payload: bytes, message_id: str) -> None:
        """Publishes a message and returns when it is stored.

        Raises: Unavailable when it may not be stored, InvalidRequest when it never will be.
        """
        ...


class BlobStore(Protocol):
    """Stores content that is too large for the broker."""

    async def upload_blob(self, tenant: str, content: bytes) -> bytes:
        """Stores the content and returns its SHA-256.

        Raises: Unavailable when it may not be stored, another RpcError when it never will be.
        """
        ...


class ResultPublisher:
    """The only sender of this process's results."""

    def __init__(self, *, producer: str, outbox: Outbox, broker: Broker, blobs: BlobStore) -> None:
        self._producer = producer
        self._outbox = outbox
        self._broker = broker
        self._blobs = blobs
        self._in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._num_sending = 0
        self._pause_seconds = 0.0
        broker.on_return(outbox.expedite_resends)

    async def publish_results(self) -> None:
        """Sends queued results and resends overdue ones, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._resend())
            while True:
                await self._in_flight.acquire()
                results = await self._next_batch()
                send_task = tasks.create_task(self._send(results))
                self._num_sending += 1
                send_task.add_done_callback(self._release_slot)

    def _release_slot(self, _: asyncio.Task[None]) -> None:
        self._num_sending -= 1
        self._in_flight.release()

    async def _next_batch(self) -> list[PendingResult]:
        """Returns a batch of results of one stage, after a short wait for more of them.

        Without another message being sent, a result is not kept waiting.
        """
        await self._outbox.wait_queued()
        lingers = self._num_sending and self._outbox.num_queued < MAX_RESULTS
        linger = LINGER_SECONDS if lingers else 0.0
        await asyncio.sleep(linger + self._pause_seconds)
        return self._outbox.take_batch(MAX_RESULTS, ROOM_BYTES - FRAME_BYTES)

    async def _send(self, results: list[PendingResult]) -> None:
        if not results:
            return
        needs = "buffer"
        try:
            content = await self._serialize_or_upload(results)
            needs = "broker"
            with send_span([pending.span for pending in results]):
                await self._broker.publish(_subject(results), content, self._message_id(results))
        except (Unavailable, QuotaExceeded) as error:
            self._requeue(results, needs, error)
        except RpcError as error:
            self._reject(results, error)
        else:
            self._pause_seconds = 0.0
            self._outbox.clear_blocked("broker")
            self._outbox.mark_sent(results)
            logger.debug("results are sent", extra={"results": len(results)})

    async def _serialize_or_upload(self, results: list[PendingResult]) -> bytes:
        """Serializes the results as a message that fits the broker's limit."""
        own = RunResultBatch(producer=self._producer).SerializeToString()
        parts = (encode_repeated_field(each.field_number, [each.body]) for each in results)
        batch = own + b"".join(parts)
        if len(batch) <= ROOM_BYTES:
            return batch
        digest = await self._blobs.upload_blob(results[0].key.tenant, batch)
        return RunResultBatch(producer=self._producer, blob_sha256=digest).SerializeToString()

    def _requeue(self, results: list[PendingResult], needs: str, error: RpcError) -> None:
        pause = max(FIRST_PAUSE_SECONDS, 2 * self._pause_seconds)
        self._pause_seconds = min(pause, MAX_PAUSE_SECONDS)
        logger.warning("results could not be published", extra={"reason": str(error)})
        self._outbox.mark_blocked(needs, error)
        self._outbox.requeue(results)

    def _reject(self, results: list[PendingResult], error: RpcError) -> None:
        """Resolves results as rejected: a retry would not help, so their runs must be failed."""
        logger.error("results cannot be published", extra={"reason": str(error)})
        for pending in results:
            self._outbox.resolve(pending.sequence, ResultReport(CommitOutcome.REJECTED, str(error)))

    def _message_id(self, results: list[PendingResult]) -> str:
        """Returns an id that differs on each send, or the broker would drop the resent copy."""
        sends = ",".join(f"{result.sequence}:{result.num_sends}" for result in results)
        return hashlib.blake2b(f"{self._producer}/{sends}".encode(), digest_size=16).hexdigest()

    async def _resend(self) -> None:
        while True:
            await asyncio.sleep(RESEND_CHECK_SECONDS)
            if num_overdue := self._outbox.requeue_overdue():
                logger.warning("no report on results: resending", extra={"results": num_overdue})


def _subject(results: list[PendingResult]) -> str:
    key = results[0].key
    return runs_subject(key.tenant, key.experiment_id, key.stage)


class NatsBroker:
    """Publishes to JetStream.

    `connect` may fail any number of times before it succeeds once; from then on the client
    reconnects by itself.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Client | None = None
        self._on_return: Callable[[], None] = lambda: None

    @property
    def is_connected(self) -> bool:
        """True if there is a connection now."""
        return self._client is not None and bool(self._client.is_connected)

    def on_return(self, listener: Callable[[], None]) -> None:
        """Registers `listener` to be called whenever a lost connection is back."""
        self._on_return = listener

    async def connect(self) -> None:
        """Connects; raises Unavailable without an answer, UserError for a wrong password."""
        self._client = await connect(
            self._url, name="explorer", setting=SETTING, on_return=lambda: self._on_return()
        )

    async def publish(self, subject: str, payload: bytes, message_id: str) -> None:
        """Publishes a message and returns when it is stored.

        Raises: Unavailable when it may not be stored, InvalidRequest when it never will be.
        """
        if self._client is None or not self._client.is_connected:
            raise Unavailable("there is no connection to it")
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                with preserve_cancellation():
                    await self._client.jetstream().publish(
                        subject,
                        payload,
                        headers={"Nats-Msg-Id": message_id} | tracing.headers(),
                        timeout=PUBLISH_SECONDS,
                    )
        except (MaxPayloadError, BadSubjectError) as error:
            raise InvalidRequest(f"the broker rejects the message: {error}") from error
        except (OSError, NatsError, TimeoutError) as error:
            raise fault_of_broker(error) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.close()
