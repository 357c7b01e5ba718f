"""The broker's side of publishing: one NATS connection that reconnects by itself."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from nats.aio.client import Client
from nats.errors import BadSubjectError, MaxPayloadError
from nats.errors import Error as NatsError

from trinity.errors import InvalidRequest, Unavailable
from trinity.nats import connect, heeding_cancellation
from trinity.telemetry import tracing

SETTING = "TRINITY_EXPLORER_NATS_URL"
PUBLISH_SECONDS = 5.0


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
        """Connects; raises Unavailable when nothing answers, UserError for a wrong password."""
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
                with heeding_cancellation():
                    await self._client.jetstream().publish(
                        subject,
                        payload,
                        headers={"Nats-Msg-Id": message_id} | tracing.headers(),
                        timeout=PUBLISH_SECONDS,
                    )
        except (MaxPayloadError, BadSubjectError) as error:
            raise InvalidRequest(f"the broker rejects the message: {error}") from error
        except (OSError, NatsError, TimeoutError) as error:
            raise Unavailable(f"it did not store: {str(error) or type(error).__name__}") from error

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
