"""Guards the handlers of a server: authorization, validation, and errors as status codes."""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from trinity.errors import Forbidden, InvalidRequest, RpcError, Unauthenticated
from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.rpc import audit
from trinity.runtime.rpc.bounds import check_bounds
from trinity.runtime.rpc.errors import status_code
from trinity.runtime.rpc.quotas import QuotaUse, TenantQuota
from trinity.runtime.security.authorization import (
    LOCAL_CALLER,
    OPEN_METHODS,
    WHOLE_PROCESS_METHODS,
    Caller,
    Scope,
    experiments_of,
    roles_of,
    scopes_of,
    set_caller,
    tenants_of,
)
from trinity.runtime.telemetry.grpc import traced_handler

logger = logging.getLogger(__name__)
rate_limited_log = RateLimitedLog(logger)


Context: TypeAlias = grpc.aio.ServicerContext
CallerOf: TypeAlias = Callable[[str], Caller]
"""Returns the caller that a token identifies; raises Unauthenticated."""
TenantOf: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Returns the tenant of an experiment, by its id; None for one that does not exist."""

BEARER = "bearer "
WRONG_TENANT = "the token is for another tenant"
"""The same text whether the requested object exists or not."""
MAX_DETAILS_LENGTH = 1_000
"""Limit of an error's text: it may repeat the request, and is sent in a header of limited size."""
UNLIMITED_STREAMS = QuotaUse(TenantQuota(what="streams", variable="", limits={"": 2**62}))
READ_REST_SECONDS = 1.0
"""How long a refused stream of requests is read on."""
UnaryHandler = Callable[[Any, Context], Awaitable[Message]]
StreamHandler = Callable[[Any, Context], AsyncIterator[Message] | Awaitable[None]]


@dataclass(frozen=True, slots=True)
class AccessControl:
    """Requires of each call a token, a scope and the token's own tenant.

    Without `caller_of` every caller may do everything, as on loopback. `tenant_of` is for requests
    that name an experiment without its tenant; if it is missing, a token for one tenant may not
    make them.
    """

    caller_of: CallerOf | None = None
    tenant_of: TenantOf | None = None

    def authenticate(self, method: str, context: Context) -> Caller:
        """Returns the caller, if the scope allows the call.

        Raises: Unauthenticated, Forbidden.
        """
        caller = LOCAL_CALLER
        if self.caller_of is not None and method not in OPEN_METHODS:
            caller = _known(self.caller_of, method, context)
            if not caller.scopes & scopes_of(method):
                text = f"the token's scopes do not allow {method}"
                _refuse(Forbidden(text), "scope", method, context, caller)
        set_caller(caller)
        return caller

    async def authorize_request(
        self, request: Message, method: str, context: Context, caller: Caller
    ) -> None:
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
        if Scope.STEER in scopes_of(method):
            audit.log_steering(method=method, peer=context.peer(), caller=caller, request=request)

    async def authorize_stream(
        self, requests: AsyncIterator[Message], method: str, context: Context, caller: Caller
    ) -> AsyncIterator[Message]:
        """Checks a stream whose first message names the tenant; others must not name another."""
        is_first = True
        async for request in requests:
            if is_first or any(tenants_of(request) or ()):
                await self.authorize_request(request, method, context, caller)
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


ALLOW_ALL = AccessControl()


def _known(caller_of: CallerOf, method: str, context: Context) -> Caller:
    try:
        return caller_of(_token(context))
    except Unauthenticated as error:
        _refuse(error, str(error), method, context, None)


def is_token_expired(caller: Caller) -> bool:
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
    audit.log_refusal(why, method=method, peer=context.peer(), caller=caller, asked=asked)
    raise error


class UnparsableRequest:
    """Stands in for a request that could not be parsed."""


def parse_with(
    deserialize: Callable[[bytes], Message],
) -> Callable[[bytes], Message | UnparsableRequest]:
    """Returns a deserializer that never raises: grpcio would answer UNKNOWN and log a traceback."""

    def parse(data: bytes) -> Message | UnparsableRequest:
        try:
            return deserialize(data)
        except DecodeError:
            return UnparsableRequest()

    return parse


async def _abort(context: Context, error: Exception, method: str) -> None:
    """Aborts the call with the code of `error`; unexpected errors are hidden and logged in full."""
    if isinstance(error, RpcError):
        details = str(error)[:MAX_DETAILS_LENGTH]
        if isinstance(error, InvalidRequest):
            rate_limited_log.warning("refused a request", method=method, reason=details)
        await context.abort(status_code(error), details)
    rate_limited_log.error(f"a call of {method} failed", error)
    await context.abort(grpc.StatusCode.INTERNAL, "internal error; the service's log has more")


async def _checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        _check(request)
        yield request


def _check(request: object) -> None:
    if isinstance(request, UnparsableRequest):
        raise InvalidRequest("the request is not a valid message of this call's type")
    if isinstance(request, Message):
        check_bounds(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodGuard:
    """One method of a server, with its admission."""

    method: str
    request_streaming: bool
    admission: AccessControl
    is_stream: bool
    """True if requests or answers are a stream, which lasts as long as its client likes."""
    streams: QuotaUse
    """The streams that each tenant has open on this server."""

    async def authorize(self, request: Any, context: Context) -> tuple[Any, Caller]:
        """Returns the checked request and its caller.

        Raises: Unauthenticated, Forbidden, InvalidRequest.
        """
        caller = self.admission.authenticate(self.method, context)
        if self.request_streaming:
            sound = _checked(request)
            return self.admission.authorize_stream(sound, self.method, context, caller), caller
        _check(request)
        await self.admission.authorize_request(request, self.method, context, caller)
        return request, caller

    def open_stream(self, caller: Caller) -> AbstractContextManager[None]:
        """Counts a stream while the block runs; raises QuotaExceeded if its tenant has too many."""
        return self.streams.hold(caller.bound_tenant) if self.is_stream else nullcontext()


def guard_unary(handler: UnaryHandler, guard: MethodGuard) -> UnaryHandler:
    """Wraps a handler that answers once."""

    async def guarded(request: Any, context: Context) -> Message:
        try:
            allowed, caller = await guard.authorize(request, context)
            with guard.open_stream(caller):
                return await handler(allowed, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # the edge of an RPC
            if guard.request_streaming:
                await _read_rest(request)
            await _abort(context, error, guard.method)
            raise

    return guarded


async def _read_rest(requests: AsyncIterator[Any]) -> None:
    """Lets a client finish: grpc.aio tells one that is still writing of an internal error."""
    with suppress(TimeoutError):
        async with asyncio.timeout(READ_REST_SECONDS):
            async for _ in requests:
                pass


def guard_stream(handler: StreamHandler, guard: MethodGuard) -> StreamHandler:
    """Wraps a handler that answers with a stream."""

    async def guarded(request: Any, context: Context) -> AsyncIterator[Message]:
        try:
            allowed, caller = await guard.authorize(request, context)
            with guard.open_stream(caller):
                answers = handler(allowed, context)
                if inspect.isawaitable(answers):  # it writes its answers to the context itself
                    await answers
                    return
                async for response in answers:
                    if is_token_expired(caller):
                        raise Unauthenticated("the token that opened this stream has expired")
                    yield response
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # the edge of an RPC
            await _abort(context, error, guard.method)

    return guarded


def guard_handler(
    handler: grpc.RpcMethodHandler,
    method: str,
    admission: AccessControl = ALLOW_ALL,
    streams: QuotaUse = UNLIMITED_STREAMS,
) -> grpc.RpcMethodHandler:
    """Returns the handler with admission, parsing and errors guarded."""
    parse = parse_with(handler.request_deserializer)
    serialize = handler.response_serializer
    guard = MethodGuard(
        method=method,
        request_streaming=bool(handler.request_streaming),
        admission=admission,
        is_stream=bool(handler.request_streaming or handler.response_streaming),
        streams=streams,
    )
    if handler.request_streaming and handler.response_streaming:
        stream = guard_stream(handler.stream_stream, guard)
        return grpc.stream_stream_rpc_method_handler(stream, parse, serialize)
    if handler.response_streaming:
        stream = guard_stream(handler.unary_stream, guard)
        return grpc.unary_stream_rpc_method_handler(stream, parse, serialize)
    if handler.request_streaming:
        unary = guard_unary(handler.stream_unary, guard)
        return grpc.stream_unary_rpc_method_handler(unary, parse, serialize)
    unary = guard_unary(handler.unary_unary, guard)
    return grpc.unary_unary_rpc_method_handler(unary, parse, serialize)


class GuardedServer:
    """Registers handlers from generated `add_..._to_server` functions, guarded."""

    def __init__(
        self,
        server: grpc.aio.Server,
        admission: AccessControl = ALLOW_ALL,
        streams: QuotaUse = UNLIMITED_STREAMS,
    ) -> None:
        self._server = server
        self._admission = admission
        self._streams = streams

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Does nothing: the same methods arrive through `add_registered_method_handlers`."""

    def add_registered_method_handlers(
        self, service: str, handlers: dict[str, grpc.RpcMethodHandler]
    ) -> None:
        """Registers a service's methods, guarded."""
        guarded = {
            name: traced_handler(
                guard_handler(handler, f"{service}/{name}", self._admission, self._streams),
                f"{service}/{name}",
            )
            for name, handler in handlers.items()
        }
        generic = grpc.method_handlers_generic_handler(service, guarded)
        self._server.add_generic_rpc_handlers((generic,))
