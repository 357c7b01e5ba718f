"""The visitors of Studio, their rights, and their limits."""

import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from trinity.errors import Unauthenticated, UserError
from trinity.runtime.security.authorization import EVERY_TENANT, Caller, Scope
from trinity.runtime.security.tokens import TokenKeys

MAX_SOCKETS = 16
"""Pages that a visitor may have open."""
MAX_REQUESTS = 64
"""Requests of a visitor that are answered at once."""
MAX_SCRIPTS = 4
"""Pages of a visitor that are made at once; others wait, and the visitor's alone."""
SCRIPT_WAIT_SECONDS = 20.0
UNITS_A_SECOND, MAX_UNITS = 30.0, 150.0
"""Frames that a visitor may send: at length, and at once after a pause."""
UNIT_BYTES = 64 * 1024
"""Size of a frame that counts as a further one."""
SOCKET_UNITS = 5
HOW_TO_GET_A_TOKEN = "get one with the scope `read` (`trinity token --scope read`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """A browser's user; the services decide about its access by its token."""

    name: str
    is_owner: bool
    """True for the one who started Studio, whose files and programs it may reach."""
    may_submit: bool = False
    """True if its token has the scope `submit`."""
    token: str = field(default="", repr=False)
    """Shown to the services; empty for the owner, who has the credentials of Studio's process."""
    expires_at: float = float("inf")
    """Seconds since 1970."""
    key: str = field(default_factory=lambda: secrets.token_hex(8), compare=False)
    """Names the visit wherever something is kept for it; no two visits have the same."""


OWNER = Visitor(name="owner", is_owner=True, key="owner")
"""Whoever has the address that the terminal shows."""


def has_expired(visitor: Visitor, clock: Callable[[], float] = time.time) -> bool:
    """Returns true if the visitor's token is not valid any more."""
    return clock() >= visitor.expires_at


def visitor_of(keys: TokenKeys, token: str, *, needs_all_tenants: bool = False) -> Visitor:
    """Returns the visitor that a token of the system lets in.

    Services that check no token show every tenant's experiments, so only a token of all tenants may
    see these.

    Raises: UserError with one sentence about the token's error.
    """
    try:
        caller = keys.caller_of(token.strip())
    except Unauthenticated as error:
        raise UserError(f"{_sentence(str(error))}.") from error
    if Scope.READ not in caller.scopes:
        raise UserError(f"This token has no right to read: {HOW_TO_GET_A_TOKEN}.")
    if needs_all_tenants and caller.tenant != EVERY_TENANT:
        raise UserError(
            "The services behind this page check no tokens and show every tenant's experiments: "
            "get a token of all tenants (`trinity token --tenant '*' --scope read`)."
        )
    return _visitor(caller, token.strip())


def _visitor(caller: Caller, token: str) -> Visitor:
    return Visitor(
        name=caller.subject,
        is_owner=False,
        may_submit=Scope.SUBMIT in caller.scopes,
        token=token,
        expires_at=caller.expires_at,
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


class Places:
    """A number of places; each block that is entered takes one."""

    def __init__(self, number: int) -> None:
        self._num_free = number

    @property
    def are_taken(self) -> bool:
        """True if no block may be entered now."""
        return self._num_free <= 0

    def __enter__(self) -> None:
        self._num_free -= 1

    def __exit__(self, *_: object) -> None:
        self._num_free += 1


class Share:
    """The usage of Studio by one visitor, in all of its browsers together.

    The gate counts sockets, requests and frames in its event loop; scripts take turns in threads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.sockets, self.requests = Places(MAX_SOCKETS), Places(MAX_REQUESTS)
        self._units, self._counted_at = MAX_UNITS, clock()
        self._scripts = threading.BoundedSemaphore(MAX_SCRIPTS)
        self._thread = threading.local()

    def wait_seconds(self, units: float) -> float:
        """Takes units, and returns the time after which they are there."""
        now = self._clock()
        self._units += (now - self._counted_at) * UNITS_A_SECOND
        self._units, self._counted_at = min(self._units, MAX_UNITS) - units, now
        return max(0.0, -self._units / UNITS_A_SECOND)

    @contextmanager
    def script(self, seconds: float = SCRIPT_WAIT_SECONDS) -> Iterator[bool]:
        """Waits for a turn, for the block; yields False after a timeout.

        A script that has one already goes on at once.
        """
        if getattr(self._thread, "has_turn", False):
            yield True
            return
        self._thread.has_turn = self._scripts.acquire(timeout=seconds)
        try:
            yield self._thread.has_turn
        finally:
            if self._thread.has_turn:
                self._scripts.release()
            self._thread.has_turn = False


class Shares:
    """The shares of all visitors; unused shares are dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: weakref.WeakValueDictionary[str, Share] = weakref.WeakValueDictionary()

    def of(self, visitor: Visitor) -> Share:
        """Returns the share of a visitor, the same for all of its sign-ins."""
        with self._lock:
            share = self._by_name.get(visitor.name)
            if share is None:
                share = self._by_name[visitor.name] = Share()
            return share
