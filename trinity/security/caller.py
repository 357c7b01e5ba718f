"""The caller of the request that is being answered."""

from contextvars import ContextVar
from dataclasses import dataclass

from trinity.security.scopes import Scope

EVERY_TENANT = "*"
"""The tenant of a token that is valid for all tenants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The identity that a valid token gives its bearer."""

    subject: str
    tenant: str
    scopes: frozenset[Scope]
    expires_at: float
    """Seconds since 1970."""

    @property
    def is_bound(self) -> bool:
        """True if the caller is limited to one tenant."""
        return self.tenant != EVERY_TENANT

    @property
    def bound_tenant(self) -> str:
        """The one tenant, or an empty text for all of them."""
        return self.tenant if self.is_bound else ""


ANYBODY = Caller(
    subject="local", tenant=EVERY_TENANT, scopes=frozenset(Scope), expires_at=float("inf")
)
"""The caller where tokens are not required, which is on loopback only."""

_current: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)


def current_caller() -> Caller:
    """Returns the caller of the request that the running task answers."""
    return _current.get()


def set_caller(caller: Caller) -> None:
    """Sets the caller, after its token was checked, in the task of the call."""
    _current.set(caller)
