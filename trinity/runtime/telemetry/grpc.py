"""Calls between services: propagates the span context and measures durations.

Methods are wrapped instead of using interceptors: with an interceptor, grpc.aio gives callers
another kind of call, whose streams and cancellation behave differently. When off, methods are not
wrapped, except at log level DEBUG, at which the end of each call is logged.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc

from trinity.runtime.telemetry import metrics, names, tracing
from trinity.runtime.telemetry.tracing import Span

logger = logging.getLogger(__name__)
HEADER = "traceparent"
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
QUIET = "grpc.health."
"""Called constantly by process supervisors."""
CODES = {code.value[0]: code.name for code in grpc.StatusCode}
UNKNOWN = grpc.StatusCode.UNKNOWN.name
ChannelT = TypeVar("ChannelT", grpc.Channel, grpc.aio.Channel)
Method = Callable[..., Any]


def traced_channel(channel: ChannelT) -> ChannelT:
    """Returns the channel, whose calls from now on carry the context."""
    if not (tracing.is_on() or metrics.is_on() or logger.isEnabledFor(logging.DEBUG)):
        return channel
    is_async = isinstance(channel, grpc.aio.Channel)
    for kind in KINDS:
        setattr(channel, kind, _traced_methods(getattr(channel, kind), kind, is_async))
    return channel


def _traced_methods(make: Callable[..., Method], kind: str, is_async: bool) -> Any:
    def made(path: str, *arguments: Any, **more: Any) -> Method:
        method = make(path, *arguments, **more)
        return method if QUIET in path else _TracedMethod(method, path.lstrip("/"), kind, is_async)

    return made


class _TracedMethod:
    """A method of a stub; it returns the very call object that gRPC made."""

    def __init__(self, method: Method, name: str, kind: str, is_async: bool) -> None:
        self._method = method
        self._name = name
        self._answers_at_once = kind.endswith("unary") and not is_async

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        """Calls the method, with the context of the current span if there is one."""
        begun = time.perf_counter()
        span: Span = tracing.NO_SPAN
        if tracing.current() is not None:
            span = tracing.span(self._name, kind="client", attributes=_about(self._name))
            more["metadata"] = (*(more.get("metadata") or ()), (HEADER, span.traceparent))
        if not self._answers_at_once:
            call = self._method(*arguments, **more)
            call.add_done_callback(lambda done: self._over(span, begun, done))
            return call
        try:
            answer, call = self._method.with_call(*arguments, **more)  # type: ignore[attr-defined]
        except grpc.RpcError as error:
            self._over(span, begun, error)
            raise
        self._over(span, begun, call)
        return answer

    def _over(self, span: Span, begun: float, call: Any) -> None:
        code = _code_of(call)
        if code != grpc.StatusCode.OK.name:
            span.fail(code)
        span.set(names.RPC_STATUS, code)
        span.end()
        seconds = time.perf_counter() - begun
        metrics.CLIENT_SECONDS.record(
            seconds, {names.RPC_METHOD: self._name, names.RPC_STATUS: code}
        )
        logger.debug(
            "a call ended",
            extra={"method": self._name, "code": code, "seconds": round(seconds, 3)},
        )


def _code_of(call: Any) -> str:
    """Returns the code of a finished call; grpc.aio gives it by a coroutine that does not block."""
    code = call.code()
    if inspect.iscoroutine(code):
        try:
            code.send(None)
        except StopIteration as stop:
            code = stop.value
        else:
            code.close()
            code = None
    return str(code.name) if isinstance(code, grpc.StatusCode) else UNKNOWN


def traced_handler(handler: grpc.RpcMethodHandler, name: str) -> grpc.RpcMethodHandler:
    """Wraps the handler of a method to take the context that comes with a call."""
    if not (tracing.is_on() or metrics.is_on()) or name.startswith(QUIET):
        return handler
    parse, serialize = handler.request_deserializer, handler.response_serializer
    kind = KINDS[2 * handler.request_streaming + handler.response_streaming]
    traced = _traced_stream if handler.response_streaming else _traced_unary
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(traced(getattr(handler, kind), name), parse, serialize)


def _traced_unary(handler: Callable[..., Awaitable[Any]], name: str) -> Method:
    async def observed(request: Any, context: grpc.aio.ServicerContext) -> Any:
        with _ServerSpan(name, context):
            return await handler(request, context)

    return observed


def _traced_stream(handler: Callable[..., Any], name: str) -> Method:
    async def observed(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        with _ServerSpan(name, context):
            answers = handler(request, context)
            if inspect.isawaitable(answers):
                await answers
                return
            async for answer in answers:
                yield answer

    return observed


class _ServerSpan:
    """A call being answered: each runs in its own task, so its span stays the current one."""

    def __init__(self, name: str, context: grpc.aio.ServicerContext) -> None:
        self._name = name
        self._context = context

    def __enter__(self) -> None:
        self._begun = time.perf_counter()
        self._span: Span = tracing.NO_SPAN
        parent = _sent_with(self._context)
        if parent is not None and parent.is_sampled:
            self._span = tracing.span(
                self._name, parent=parent, kind="server", attributes=_about(self._name)
            )
            self._span.attach()

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        number = self._context.code()
        code = _name_of(number) if kind is None or number else _name_of_error(kind)
        if kind is not None and not issubclass(kind, GeneratorExit):
            self._span.fail(code)
        self._span.set(names.RPC_STATUS, code)
        self._span.end()
        metrics.SERVER_SECONDS.record(
            time.perf_counter() - self._begun,
            {names.RPC_METHOD: self._name, names.RPC_STATUS: code},
        )


def _name_of(number: Any) -> str:
    """Returns a code's name; grpc.aio keeps a code as a number, or as it was given."""
    if isinstance(number, grpc.StatusCode):
        return str(number.name)
    return str(CODES.get(number or 0, UNKNOWN))


def _name_of_error(kind: type[BaseException]) -> str:
    """Returns the code that a client sees when a handler ends in an error and has set no code."""
    is_left = issubclass(kind, asyncio.CancelledError | GeneratorExit)
    return str(grpc.StatusCode.CANCELLED.name) if is_left else UNKNOWN


def _sent_with(context: grpc.aio.ServicerContext) -> tracing.SpanContextRef | None:
    if not tracing.is_on():
        return None
    header = dict(context.invocation_metadata() or ()).get(HEADER)
    return tracing.parse_traceparent(header) if isinstance(header, str) else None


def _about(name: str) -> dict[str, str]:
    return {names.RPC_SYSTEM: "grpc", names.RPC_METHOD: name}
