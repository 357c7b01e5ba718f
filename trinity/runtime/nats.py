"""Connections to the NATS broker, for publishers and subscribers."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NoStreamResponseError

from trinity.errors import NotReady, Unavailable, UserError
from trinity.runtime.nats_client import FastReconnectClient
from trinity.runtime.security.broker import client_options

logger = logging.getLogger(__name__)

NO_ROOM = frozenset({10002, 10023, 10028, 10047, 10077, 10122})
"""Error codes of JetStream: limits of the account, the server's store, a stream, its disk."""

CONNECT_SECONDS = 5.0
ATTEMPT_SECONDS = 2.0
"""Limit for each step of one connection attempt; the next attempt may succeed."""
CANCEL_AGAIN_SECONDS = 0.5
RECONNECT_PAUSE_SECONDS = 0.2
PING_SECONDS = 2
MAX_UNANSWERED_PINGS = 2
RECONNECT_OPTIONS: Mapping[str, float] = {
    "reconnect_time_wait": RECONNECT_PAUSE_SECONDS,
    "connect_timeout": ATTEMPT_SECONDS,
    "ping_interval": PING_SECONDS,
    "max_outstanding_pings": MAX_UNANSWERED_PINGS,
}
"""A broker that vanished silently is detected within seconds, and so is its return."""


@contextlib.contextmanager
def preserve_cancellation() -> Iterator[None]:
    """Raises a cancellation that the client's calls within the block may have swallowed.

    The client waits with `asyncio.wait_for`. In Python 3.11 it may return the result and drop a
    cancellation that arrives at the same moment: a loop around the call would never end.
    """
    yield
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def connect(
    url: str,
    *,
    name: str,
    setting: str,
    timeout_seconds: float = CONNECT_SECONDS,
    on_return: Callable[[], None] = lambda: None,
) -> Client:
    """Returns a connection that reconnects whenever the broker is back; close it when done.

    `name` is shown in the broker's own lists; `setting` is the variable that a person corrects;
    `on_return` is called after every reconnect.

    Raises: UserError when the address is invalid or the broker refuses user or password;
    Unavailable when the broker does not answer in time.
    """
    attempt = _ConnectAttempt(FastReconnectClient(), name, on_return)
    connecting = asyncio.ensure_future(attempt.connect(url))
    outcomes = (connecting, attempt.refusal)
    try:
        await asyncio.wait(outcomes, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            raise _no_connection(url, setting, attempt)
        connecting.result()
    except (NatsError, ValueError) as error:
        # Once it knows where to connect, the client retries forever: the address itself is wrong.
        raise UserError(f"{setting} is not the address of a broker: {error}") from error
    except BaseException:
        await attempt.give_up(connecting)
        raise
    attempt.is_connected = True
    return attempt.client


def fault_of_broker(error: BaseException) -> Unavailable:
    """Describes the cause of a failed call: a refusal, with its reason, or no answer."""
    if isinstance(error, NoStreamResponseError):
        return NotReady(
            "the broker has no stream of results: the buffer makes it when the broker has room"
        )
    if not isinstance(error, APIError) or error.description is None:
        return Unavailable(f"the broker does not answer: {error!r}")
    advice = "make room on its disk, or raise its limits" if is_full(error) else "see its log"
    return NotReady(f"the broker refuses: {error.description}; {advice}")


def is_full(error: BaseException) -> bool:
    """Returns true if the broker refuses because its store, or a limit of it, has no room."""
    return isinstance(error, APIError) and error.err_code in NO_ROOM


def address_without_password(url: str) -> str:
    """Returns the address without user and password."""
    return url.rpartition("@")[2].removeprefix("nats://")


def _no_connection(url: str, setting: str, attempt: "_ConnectAttempt") -> Exception:
    address = address_without_password(url)
    if attempt.refusal.done():
        return UserError(
            f"the broker at {address} refuses the user or the password: correct {setting}"
        )
    reason = f": {attempt.last_error}" if attempt.last_error else ""
    return Unavailable(f"the broker at {address} does not answer{reason}")


class _ConnectAttempt:
    """A client until its first connection, and its callbacks then and later."""

    def __init__(self, client: Client, name: str, on_return: Callable[[], None]) -> None:
        self.client = client
        self.is_connected = False
        self.last_error = ""
        self.refusal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._name = name
        self._on_return = on_return

    async def connect(self, url: str) -> None:
        await self.client.connect(
            url,
            name=self._name,
            max_reconnect_attempts=-1,
            **RECONNECT_OPTIONS,
            error_cb=self._note_error,
            disconnected_cb=self._note_loss,
            reconnected_cb=self._note_return,
            **client_options(url),
        )

    async def give_up(self, connecting: "asyncio.Future[None]") -> None:
        while not connecting.done():
            # A refusal at the same moment can swallow the cancellation: cancel again.
            connecting.cancel()
            await asyncio.wait([connecting], timeout=CANCEL_AGAIN_SECONDS)
        with contextlib.suppress(NatsError, OSError):
            await self.client.close()

    async def _note_error(self, error: Exception) -> None:
        """Records the error; before the first connection, `connect` reports it."""
        self.last_error = str(error) or type(error).__name__
        if self.is_connected:
            logger.warning("broker", extra={"reason": self.last_error})
        elif "authorization" in self.last_error.lower() and not self.refusal.done():
            self.refusal.set_result(None)

    async def _note_loss(self) -> None:
        if self.is_connected and not self.client.is_closed:
            logger.warning("the connection to the broker is lost")

    async def _note_return(self) -> None:
        logger.info("the connection to the broker is back")
        self._on_return()
