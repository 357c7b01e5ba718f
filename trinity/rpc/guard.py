"""Wrap RPC handlers: malformed bytes and our errors become the right status codes."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from trinity.errors import InvalidRequest, RpcError
from trinity.rpc.errors import status_code

logger = logging.getLogger(__name__)

LOG_INTERVAL_SECONDS = 10.0

Context: TypeAlias = grpc.aio.ServicerContext
UnaryHandler = Callable[[Any, Context], Awaitable[Message]]
StreamHandler = Callable[[Any, Context], AsyncIterator[Message]]


class Malformed:
    """Stands for a request that could not be parsed."""


class RateLimitedLog:
    """Logs a kind of event at once, then at most every interval, with the count in between."""

    def __init__(self, interval_seconds: float = LOG_INTERVAL_SECONDS) -> None:
        self._interval = interval_seconds
        self._next_at: dict[str, float] = {}
        self._skipped: dict[str, int] = {}

    def warning(self, message: str, **extra: object) -> None:
        """Log `message` unless it was logged within the interval."""
        now = time.monotonic()
        if now < self._next_at.get(message, 0.0):
            self._skipped[message] = self._skipped.get(message, 0) + 1
            return
        self._next_at[message] = now + self._interval
        logger.warning(message, extra={**extra, "since_last": self._skipped.pop(message, 0)})


limited_log = RateLimitedLog()


def parse_with(deserialize: Callable[[bytes], Message]) -> Callable[[bytes], Message | Malformed]:
    """A deserializer that never raises: grpcio would answer UNKNOWN and log a traceback."""

    def parse(data: bytes) -> Message | Malformed:
        try:
            return deserialize(data)
        except DecodeError:
            return Malformed()

    return parse


async def _abort(context: Context, error: Exception, method: str) -> None:
    """End the call with the code of `error`; only unexpected errors are hidden and logged whole."""
    if isinstance(error, RpcError):
        if isinstance(error, InvalidRequest):
            limited_log.warning("refused a request", method=method, reason=str(error))
        await context.abort(status_code(error), str(error))
    logger.error("a call failed", extra={"method": method}, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, "internal error; the service's log has more")


async def _checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        _check(request)
        yield request


def _check(request: object) -> None:
    if isinstance(request, Malformed):
        raise InvalidRequest("the request is not a valid message of this call's type")


def _prepare(request: Any, streaming: bool) -> Any:
    if streaming:
        return _checked(request)
    _check(request)
    return request


def guard_unary(handler: UnaryHandler, method: str, request_streaming: bool) -> UnaryHandler:
    """Wrap a handler that answers once."""

    async def guarded(request: Any, context: Context) -> Message:
        try:
            return await handler(_prepare(request, request_streaming), context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # the edge of an RPC
            await _abort(context, error, method)
            raise

    return guarded


def guard_stream(handler: StreamHandler, method: str, request_streaming: bool) -> StreamHandler:
    """Wrap a handler that answers with a stream."""

    async def guarded(request: Any, context: Context) -> AsyncIterator[Message]:
        try:
            async for response in handler(_prepare(request, request_streaming), context):
                yield response
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # the edge of an RPC
            await _abort(context, error, method)

    return guarded


def guard_handler(handler: grpc.RpcMethodHandler, method: str) -> grpc.RpcMethodHandler:
    """The same handler with parsing and errors guarded."""
    parse = parse_with(handler.request_deserializer)
    serialize = handler.response_serializer
    if handler.request_streaming and handler.response_streaming:
        stream = guard_stream(handler.stream_stream, method, True)
        return grpc.stream_stream_rpc_method_handler(stream, parse, serialize)
    if handler.response_streaming:
        stream = guard_stream(handler.unary_stream, method, False)
        return grpc.unary_stream_rpc_method_handler(stream, parse, serialize)
    if handler.request_streaming:
        unary = guard_unary(handler.stream_unary, method, True)
        return grpc.stream_unary_rpc_method_handler(unary, parse, serialize)
    unary = guard_unary(handler.unary_unary, method, False)
    return grpc.unary_unary_rpc_method_handler(unary, parse, serialize)


class GuardedServer:
    """What generated `add_..._to_server` functions register on; every handler gets guarded."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Ignored: the same methods arrive through `add_registered_method_handlers`."""

    def add_registered_method_handlers(
        self, service: str, handlers: dict[str, grpc.RpcMethodHandler]
    ) -> None:
        """Register a service's methods, guarded."""
        guarded = {n: guard_handler(h, f"{service}/{n}") for n, h in handlers.items()}
        generic = grpc.method_handlers_generic_handler(service, guarded)
        self._server.add_generic_rpc_handlers((generic,))
