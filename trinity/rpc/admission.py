"""Authorizes the calls of a server before anything is looked up."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import grpc
from google.protobuf.message import Message

from trinity.errors import Forbidden, RpcError, Unauthenticated
from trinity.security import audit
from trinity.security.caller import ANYBODY, Caller, set_caller
from trinity.security.roles import roles_of
from trinity.security.scopes import (
    OPEN_METHODS,
    SCOPES_OF_METHODS,
    WHOLE_PROCESS_METHODS,
    Scope,
)
from trinity.security.tenancy import experiments_of, tenants_of

Context: TypeAlias = grpc.aio.ServicerContext
CallerOf: TypeAlias = Callable[[str], Caller]
"""Returns the caller that a token identifies; raises Unauthenticated."""
TenantOf: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Returns the tenant of an experiment, by its id; None for one that does not exist."""

BEARER = "bearer "
WRONG_TENANT = "the token is for another tenant"
"""The same text whether the requested object exists or not."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Requires of each call a token, a scope and the token's own tenant.

    Without `caller_of` every caller may do everything, as on loopback. `tenant_of` is for requests
    that name an experiment without its tenant; if it is missing, a token for one tenant may not
    make them.
    """

    caller_of: CallerOf | None = None
    tenant_of: TenantOf | None = None

    def enter(self, method: str, context: Context) -> Caller:
        """Returns the caller, if the scope allows the call.

        Raises: Unauthenticated, Forbidden.
        """
        caller = ANYBODY
        if self.caller_of is not None and method not in OPEN_METHODS:
            caller = _known(self.caller_of, method, context)
            if not caller.scopes & SCOPES_OF_METHODS.get(method, frozenset()):
                text = f"the token's scopes do not allow {method}"
                _refuse(Forbidden(text), "scope", method, context, caller)
        set_caller(caller)
        return caller

    async def check(self, request: Message, method: str, context: Context, caller: Caller) -> None:
        """Returns if the caller may act in the request's role and on its tenant.

        Raises: Forbidden, with the same text whether the requested object exists or not.
        """
        if foreign := roles_of(request) - caller.scopes:
            role = ",".join(sorted(foreign))
            text = f"the token's scopes do not allow acting as {role}"
            _refuse(Forbidden(text), "role", method, context, caller, role)
        if caller.is_bound and not await self._owns(caller, request, method):
            asked = ",".join(tenants_of(request) or experiments_of(request))
            _refuse(Forbidden(WRONG_TENANT), "tenant", method, context, caller, asked)
        if Scope.STEER in SCOPES_OF_METHODS.get(method, ()):
            audit.steered(method=method, peer=context.peer(), caller=caller, request=request)

    async def checked(
        self, requests: AsyncIterator[Message], method: str, context: Context, caller: Caller
    ) -> AsyncIterator[Message]:
        """Checks a stream whose first message names the tenant; others must not name another."""
        is_first = True
        async for request in requests:
            if is_first or any(tenants_of(request) or ()):
                await self.check(request, method, context, caller)
            is_first = False
            yield request

    async def _owns(self, caller: Caller, request: Message, method: str) -> bool:
        if method in WHOLE_PROCESS_METHODS:
            return False
        tenants = tenants_of(request)
        if tenants is not None:
            return all(tenant == caller.tenant for tenant in tenants)
        for experiment in experiments_of(request):
            if self.tenant_of is None or await self.tenant_of(experiment) != caller.tenant:
                return False
        return True


def _known(caller_of: CallerOf, method: str, context: Context) -> Caller:
    try:
        return caller_of(_token(context))
    except Unauthenticated as error:
        _refuse(error, str(error), method, context, None)


def ends_stream(caller: Caller) -> bool:
    """Returns true if an open stream has outlived the token that opened it."""
    return time.time() >= caller.expires_at


def _token(context: Context) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization" and str(value)[: len(BEARER)].lower() == BEARER:
            return str(value)[len(BEARER) :].strip()
    raise Unauthenticated("no token: set `authorization: Bearer <token>`")


def _refuse(
    error: RpcError,
    why: str,
    method: str,
    context: Context,
    caller: Caller | None,
    asked: str = "",
) -> NoReturn:
    audit.refused(why, method=method, peer=context.peer(), caller=caller, asked=asked)
    raise error


OPEN = Admission()
