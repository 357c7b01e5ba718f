"""The broker's side of publishing: one NATS connection that reconnects for ever."""

import asyncio
import logging
from types import TracebackType
from typing import Self

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

from trinity.errors import Unavailable

logger = logging.getLogger(__name__)

PUBLISH_SECONDS = 5.0
CONNECT_SECONDS = 5.0
RECONNECT_PAUSE_SECONDS = 0.5


class NatsBroker:
    """Publishes to JetStream.

    `connect` may fail any number of times before it succeeds once; from then on the client
    reconnects by itself.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Client | None = None
        self._is_closing = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection now."""
        return self._client is not None and bool(self._client.is_connected)

    async def connect(self) -> None:
        """Raises: Unavailable when nothing answers."""
        try:
            self._client = await nats.connect(
                self._url,
                allow_reconnect=True,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_PAUSE_SECONDS,
                connect_timeout=CONNECT_SECONDS,
                error_cb=_log_error,
                disconnected_cb=self._log_disconnect,
                reconnected_cb=_log_reconnect,
            )
        except (OSError, NatsError, TimeoutError) as error:
            raise Unavailable(f"the broker does not answer: {error}") from error

    async def publish(self, subject: str, payload: bytes, message_id: str) -> None:
        """Return when the message is stored.

        Raises: Unavailable when it may not be.
        """
        if self._client is None or not self._client.is_connected:
            raise Unavailable("there is no connection to the broker")
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                await self._client.jetstream().publish(
                    subject, payload, headers={"Nats-Msg-Id": message_id}, timeout=PUBLISH_SECONDS
                )
        except (OSError, NatsError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"the broker did not store a message: {reason}") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_closing = True
        if self._client is not None:
            await self._client.close()

    async def _log_disconnect(self) -> None:
        if not self._is_closing:
            logger.warning("the connection to the broker is lost")


async def _log_error(error: Exception) -> None:
    logger.warning("broker error", extra={"reason": str(error) or type(error).__name__})


async def _log_reconnect() -> None:
    logger.info("the connection to the broker is back")
