"""Wraps RPC handlers: authorizes callers and converts errors to status codes."""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from trinity.errors import InvalidRequest, RpcError, Unauthenticated
from trinity.limited_log import LimitedLog
from trinity.rpc.admission import OPEN, Admission, ends_stream
from trinity.rpc.errors import status_code
from trinity.security.caller import Caller
from trinity.telemetry.rpc import observed_handler

logger = logging.getLogger(__name__)

MAX_DETAILS_LENGTH = 1_000
"""Limit of an error's text: it may repeat the request, and is sent in a header of limited size."""

Context: TypeAlias = grpc.aio.ServicerContext
UnaryHandler = Callable[[Any, Context], Awaitable[Message]]
StreamHandler = Callable[[Any, Context], AsyncIterator[Message] | Awaitable[None]]


class Malformed:
    """Stands in for a request that could not be parsed."""


limited_log = LimitedLog(logger)


def parse_with(deserialize: Callable[[bytes], Message]) -> Callable[[bytes], Message | Malformed]:
    """Returns a deserializer that never raises: grpcio would answer UNKNOWN and log a traceback."""

    def parse(data: bytes) -> Message | Malformed:
        try:
            return deserialize(data)
        except DecodeError:
            return Malformed()

    return parse


async def _abort(context: Context, error: Exception, method: str) -> None:
    """Aborts the call with the code of `error`; unexpected errors are hidden and logged in full."""
    if isinstance(error, RpcError):
        details = str(error)[:MAX_DETAILS_LENGTH]
        if isinstance(error, InvalidRequest):
            limited_log.warning("refused a request", method=method, reason=details)
        await context.abort(status_code(error), details)
    limited_log.error(f"a call of {method} failed", error)
    await context.abort(grpc.StatusCode.INTERNAL, "internal error; the service's log has more")


async def _checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        _check(request)
        yield request


def _check(request: object) -> None:
    if isinstance(request, Malformed):
        raise InvalidRequest("the request is not a valid message of this call's type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One method of a server, with its admission."""

    method: str
    request_streaming: bool
    admission: Admission

    async def admit(self, request: Any, context: Context) -> tuple[Any, Caller]:
        """Returns the checked request and its caller.

        Raises: Unauthenticated, Forbidden, InvalidRequest.
        """
        caller = self.admission.enter(self.method, context)
        if self.request_streaming:
            sound = _checked(request)
            return self.admission.checked(sound, self.method, context, caller), caller
        _check(request)
        await self.admission.check(request, self.method, context, caller)
        return request, caller


def guard_unary(handler: UnaryHandler, door: Door) -> UnaryHandler:
    """Wraps a handler that answers once."""

    async def guarded(request: Any, context: Context) -> Message:
        try:
            allowed, _ = await door.admit(request, context)
            return await handler(allowed, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # the edge of an RPC
            await _abort(context, error, door.method)
            raise

    return guarded


def guard_stream(handler: StreamHandler, door: Door) -> StreamHandler:
    """Wraps a handler that answers with a stream."""

    async def guarded(request: Any, context: Context) -> AsyncIterator[Message]:
        try:
            allowed, caller = await door.admit(request, context)
            answers = handler(allowed, context)
            if inspect.isawaitable(answers):  # it writes its answers to the context itself
                await answers
                return
            async for response in answers:
                if ends_stream(caller):
                    raise Unauthenticated("the token that opened this stream has expired")
                yield response
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # the edge of an RPC
            await _abort(context, error, door.method)

    return guarded


def guard_handler(
    handler: grpc.RpcMethodHandler, method: str, admission: Admission = OPEN
) -> grpc.RpcMethodHandler:
    """Returns the handler with admission, parsing and errors guarded."""
    parse = parse_with(handler.request_deserializer)
    serialize = handler.response_serializer
    streams = bool(handler.request_streaming)
    door = Door(method=method, request_streaming=streams, admission=admission)
    if handler.request_streaming and handler.response_streaming:
        stream = guard_stream(handler.stream_stream, door)
        return grpc.stream_stream_rpc_method_handler(stream, parse, serialize)
    if handler.response_streaming:
        stream = guard_stream(handler.unary_stream, door)
        return grpc.unary_stream_rpc_method_handler(stream, parse, serialize)
    if handler.request_streaming:
        unary = guard_unary(handler.stream_unary, door)
        return grpc.stream_unary_rpc_method_handler(unary, parse, serialize)
    unary = guard_unary(handler.unary_unary, door)
    return grpc.unary_unary_rpc_method_handler(unary, parse, serialize)


class GuardedServer:
    """Registers handlers from generated `add_..._to_server` functions, guarded."""

    def __init__(self, server: grpc.aio.Server, admission: Admission = OPEN) -> None:
        self._server = server
        self._admission = admission

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Does nothing: the same methods arrive through `add_registered_method_handlers`."""

    def add_registered_method_handlers(
        self, service: str, handlers: dict[str, grpc.RpcMethodHandler]
    ) -> None:
        """Registers a service's methods, guarded."""
        guarded = {
            name: observed_handler(
                guard_handler(handler, f"{service}/{name}", self._admission), f"{service}/{name}"
            )
            for name, handler in handlers.items()
        }
        generic = grpc.method_handlers_generic_handler(service, guarded)
        self._server.add_generic_rpc_handlers((generic,))
