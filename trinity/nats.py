"""Connections to the broker, for those who publish and those who listen."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping

from nats.aio.client import Client
from nats.errors import Error as NatsError

from trinity.errors import Unavailable, UserError
from trinity.security.broker import client_options

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
ATTEMPT_SECONDS = 2.0
"""How long each step of one attempt to connect may take; the next attempt may find more."""
CANCEL_AGAIN_SECONDS = 0.5
RECONNECT_PAUSE_SECONDS = 0.2
PING_SECONDS = 2
MAX_UNANSWERED_PINGS = 2
PACE: Mapping[str, float] = {
    "reconnect_time_wait": RECONNECT_PAUSE_SECONDS,
    "connect_timeout": ATTEMPT_SECONDS,
    "ping_interval": PING_SECONDS,
    "max_outstanding_pings": MAX_UNANSWERED_PINGS,
}
"""A broker that has gone without a word is noticed within seconds, and one that is back, too."""


class PromptClient(Client):  # type: ignore[misc]  # the library has no types
    """Drops a connection that is dead without a goodbye.

    The library closes it in order: over TLS that takes 30 s where the other end is silent, and only
    then does it connect again.
    """

    async def _process_op_err(self, e: Exception) -> None:
        if not (self.is_closed or self.is_reconnecting) and self._transport:
            self._transport._io_writer.transport.abort()
        await super()._process_op_err(e)


@contextlib.contextmanager
def heeding_cancellation() -> Iterator[None]:
    """For calls of the client that are awaited within the block.

    It waits with `asyncio.wait_for`, which in Python 3.11 gives the answer in place of a
    cancellation that comes at the same moment: a loop that asks again would never end.
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
    """A connection that comes back whenever the broker does; close it when done.

    `name` is shown in the broker's own lists; `setting` is the variable that a person corrects;
    `on_return` is called whenever it has come back.

    Raises: UserError when the address is none or the broker refuses user or password; Unavailable
    when nothing answers in time.
    """
    attempt = _Attempt(PromptClient(), name, on_return)
    connecting = asyncio.ensure_future(attempt.connect(url))
    ways = (connecting, attempt.refusal)
    try:
        await asyncio.wait(ways, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            raise _no_connection(url, setting, attempt)
        connecting.result()
    except (NatsError, ValueError) as error:
        # Once it knows where to connect, the client goes on for ever: this is the address itself.
        raise UserError(f"{setting} is no address of a broker: {error}") from error
    except BaseException:
        await attempt.give_up(connecting)
        raise
    attempt.is_connected = True
    return attempt.client


def place(url: str) -> str:
    """The address without user and password."""
    return url.rpartition("@")[2].removeprefix("nats://")


def _no_connection(url: str, setting: str, attempt: "_Attempt") -> Exception:
    if attempt.refusal.done():
        return UserError(
            f"the broker at {place(url)} refuses the user or the password: correct {setting}"
        )
    reason = f": {attempt.last_error}" if attempt.last_error else ""
    return Unavailable(f"the broker at {place(url)} does not answer{reason}")


class _Attempt:
    """A client on its way to its first connection, and what it says then and later."""

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
            **PACE,
            error_cb=self._note_error,
            disconnected_cb=self._note_loss,
            reconnected_cb=self._note_return,
            **client_options(url),
        )

    async def give_up(self, connecting: "asyncio.Future[None]") -> None:
        while not connecting.done():
            # A refusal that comes at the same moment takes a cancellation's place, and it goes on.
            connecting.cancel()
            await asyncio.wait([connecting], timeout=CANCEL_AGAIN_SECONDS)
        with contextlib.suppress(NatsError, OSError):
            await self.client.close()

    async def _note_error(self, error: Exception) -> None:
        """Before the first connection whoever connects tells why there is none."""
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
