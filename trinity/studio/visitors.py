"""The people whom Studio lets in, and what each of them may do there."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trinity.errors import Unauthenticated, UserError
from trinity.security.authorization import Caller, Scope
from trinity.security.tokens import TokenKeys

HOW_TO_GET_A_TOKEN = "get one with the scope `read` (`trinity token --scope read`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """A browser's user; the services decide by its token what it sees."""

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


def visitor_of(keys: TokenKeys, token: str) -> Visitor:
    """Returns the visitor that a token of the system lets in.

    Raises: UserError with one sentence that says what is wrong with the token.
    """
    try:
        caller = keys.caller_of(token.strip())
    except Unauthenticated as error:
        raise UserError(f"{_sentence(str(error))}.") from error
    if Scope.READ not in caller.scopes:
        raise UserError(f"This token has no right to read: {HOW_TO_GET_A_TOKEN}.")
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
