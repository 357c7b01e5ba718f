"""Who makes the call that is being answered."""

from contextvars import ContextVar
from dataclasses import dataclass

from trinity.security.scopes import Scope

EVERY_TENANT = "*"
"""The tenant of a token that is good for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a valid token says of who shows it."""

    subject: str
    tenant: str
    scopes: frozenset[Scope]
    expires_at: float
    """Seconds since 1970."""

    @property
    def is_bound(self) -> bool:
        """Whether it may touch one tenant only."""
        return self.tenant != EVERY_TENANT

    @property
    def bound_tenant(self) -> str:
        """The one tenant, or an empty text for all of them."""
        return self.tenant if self.is_bound else ""


ANYBODY = Caller(
    subject="local", tenant=EVERY_TENANT, scopes=frozenset(Scope), expires_at=float("inf")
)
"""Where tokens are not asked for, which is on loopback only."""

_current: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


def current_caller() -> Caller:
    """Who makes the call that the running task answers."""
    return _current.get()


def set_caller(caller: Caller) -> None:
    """To be called by whoever has checked the token, in the task of the call."""
    _current.set(caller)
