"""The JetStream stream of results from explorers, and the buffer's consumer."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoServersError
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError, BadRequestError, ServerError
from nats.js.errors import Error as JetStreamError

from services.buffer.ingest.pull import ResultPull
from trinity.errors import NotReady, Unavailable, UserError
from trinity.runtime.nats import RECONNECT_OPTIONS, fault_of_broker, is_full
from trinity.runtime.security.broker import client_options
from trinity.runtime.subjects import RUNS_CONSUMER, RUNS_PREFIX, RUNS_STREAM

logger = logging.getLogger(__name__)


ACK_SECONDS = 3.0
"""A message is redelivered after this, unless the buffer acknowledges or extends it."""
MAX_UNACKED = 1024
RETRY_SECONDS = 0.2
MAX_MESSAGE_BYTES = 1024 * 1024
"""Larger results are uploaded as blobs, and the message refers to them."""
MIN_STREAM_BYTES = 64 * 1024 * 1024
"""With less room than this explorers would wait for the buffer at every step."""
STREAM_CONFIG_DIFFERS = 10058
"""Error code of the broker: the stream exists with another configuration."""
CONSUMER_UNREADABLE = 10012
"""Error code of the broker: the files of the consumer cannot be read."""


@asynccontextmanager
async def connect(client: Client, url: str, connect_seconds: float) -> AsyncIterator[None]:
    """Connects while the block runs; reconnects whenever the broker comes back.

    Raises: UserError when the broker does not answer at the start.
    """
    try:
        async with asyncio.timeout(connect_seconds):
            await _connect_once(client, url)
    except TimeoutError as error:
        raise UserError(
            f"The broker at {_host_of(url)} does not answer: start it, or correct "
            "TRINITY_BUFFER_NATS_URL"
        ) from error
    try:
        yield
    finally:
        await client.close()


async def _connect_once(client: Client, url: str) -> None:
    while True:
        try:
            await client.connect(
                url,
                name="buffer",
                max_reconnect_attempts=-1,
                **RECONNECT_OPTIONS,
                error_cb=_log_error,
                **client_options(url),
            )
        except (OSError, NatsError, NoServersError) as error:
            if "authorization" in str(error).lower():
                raise UserError(
                    f"The broker at {_host_of(url)} refuses the user or password: correct "
                    "TRINITY_BUFFER_NATS_URL"
                ) from error
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return


async def _log_error(error: Exception) -> None:
    logger.warning("the broker reports an error", extra={"why": str(error) or type(error).__name__})


def _host_of(url: str) -> str:
    return url.rpartition("@")[2].removeprefix("nats://")


class RunStream:
    """The work queue of results: a message is kept until the buffer has committed it.

    A full stream refuses new messages: the sender keeps them and retries.
    """

    def __init__(self, client: Client, max_bytes: int, replicas: int = 1) -> None:
        self._client = client
        self._replicas = replicas
        self._jetstream: JetStreamContext = client.jetstream(timeout=5.0)
        self._max_bytes = max_bytes

    async def bind(self) -> ResultPull:
        """Creates or finds the stream and the consumer.

        Raises: Unavailable when the broker does not answer.
        """
        try:
            await self._ensure_stream()
            await self._ensure_consumer()
            return await ResultPull.of(self._client)
        except (NatsError, JetStreamError, OSError, TimeoutError) as error:
            raise fault_of_broker(error) from error

    async def _ensure_stream(self) -> None:
        """Creates or changes the stream; it gets less room where the broker has less."""
        max_bytes = self._max_bytes
        while True:
            try:
                await self._place_stream(max_bytes)
            except APIError as error:
                if not is_full(error) or max_bytes <= MIN_STREAM_BYTES:
                    raise
                max_bytes = max(MIN_STREAM_BYTES, max_bytes * 3 // 4)
            else:
                break
        if max_bytes < self._max_bytes:
            about = {"mebibytes": max_bytes >> 20, "wanted": self._max_bytes >> 20}
            logger.warning("the broker has less room for results than is allowed", extra=about)

    async def _place_stream(self, max_bytes: int) -> None:
        config = self._stream_config(max_bytes)
        try:
            await self._jetstream.add_stream(config)
        except BadRequestError as error:
            if error.err_code != STREAM_CONFIG_DIFFERS:
                raise
            await self._jetstream.update_stream(config)

    async def _ensure_consumer(self) -> None:
        """Creates the consumer; recreates the stream if the consumer's files are damaged.

        Explorers then resend unacknowledged results; duplicates do no harm.
        """
        config = self._consumer_config()
        try:
            await self._jetstream.add_consumer(RUNS_STREAM, config)
        except ServerError as error:
            if error.err_code != CONSUMER_UNREADABLE:
                raise
            logger.warning("the stream of results is damaged and is created again")
            await self._jetstream.delete_stream(RUNS_STREAM)
            await self._ensure_stream()
            await self._jetstream.add_consumer(RUNS_STREAM, config)
        if await self._skips_messages():
            logger.warning("the stream of results has lost messages: it is read from its beginning")
            await self._jetstream.delete_consumer(RUNS_STREAM, RUNS_CONSUMER)
            await self._jetstream.add_consumer(RUNS_STREAM, config)

    async def _skips_messages(self) -> bool:
        """Returns true if the consumer stands beyond the stream's end and would skip messages."""
        consumer = await self._jetstream.consumer_info(RUNS_STREAM, RUNS_CONSUMER)
        stream = await self._jetstream.stream_info(RUNS_STREAM)
        return consumer.delivered is not None and (
            consumer.delivered.stream_seq > stream.state.last_seq
        )

    async def check_position(self) -> None:
        """Checks that the consumer would receive new messages.

        Raises: Unavailable when `bind` is needed again.
        """
        try:
            is_lost = await self._skips_messages()
        except (NatsError, JetStreamError, OSError, TimeoutError) as error:
            raise fault_of_broker(error) from error
        if is_lost:
            raise NotReady("the broker has lost messages")

    async def num_pending(self) -> int:
        """Returns the number of messages that are not stored yet.

        Raises: Unavailable when the broker does not answer.
        """
        if not self.is_connected:
            raise Unavailable("the broker does not answer")
        try:
            info = await self._jetstream.consumer_info(RUNS_STREAM, RUNS_CONSUMER)
        except (NatsError, JetStreamError, OSError, TimeoutError) as error:
            raise fault_of_broker(error) from error
        return (info.num_pending or 0) + (info.num_ack_pending or 0)

    @property
    def is_connected(self) -> bool:
        """True if the broker is connected."""
        return bool(self._client.is_connected)

    def _stream_config(self, max_bytes: int) -> StreamConfig:
        return StreamConfig(
            name=RUNS_STREAM,
            subjects=[f"{RUNS_PREFIX}.>"],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
            max_bytes=max_bytes,
            max_msg_size=MAX_MESSAGE_BYTES,
            discard=DiscardPolicy.NEW,
            num_replicas=self._replicas,
        )

    def _consumer_config(self) -> ConsumerConfig:
        return ConsumerConfig(
            durable_name=RUNS_CONSUMER,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ACK_SECONDS,
            max_deliver=-1,
            max_ack_pending=MAX_UNACKED,
        )
