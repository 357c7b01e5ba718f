"""Tracing while it is on: the only place, with `exporting`, that knows OpenTelemetry's tracing."""

from collections.abc import Sequence
from contextvars import ContextVar, Token
from functools import lru_cache

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from trinity.telemetry.places import KEPT, Place
from trinity.telemetry.tracing import Attributes, Kind, Span, Value

KINDS: dict[Kind, SpanKind] = {
    "internal": SpanKind.INTERNAL,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
}
_chosen: ContextVar[Place | None] = ContextVar("chosen", default=None)


class ChosenIds(RandomIdGenerator):
    """Random ids, except for a span whose place was known beforehand."""

    def generate_trace_id(self) -> int:
        """Of a span without a parent."""
        place = _chosen.get()
        return super().generate_trace_id() if place is None else place.trace_id

    def generate_span_id(self) -> int:
        """Of every span."""
        place = _chosen.get()
        return super().generate_span_id() if place is None else place.span_id


class OpenTelemetrySpan:
    """A `Span`."""

    __slots__ = ("context", "span")

    def __init__(self, span: trace.Span, context: Context) -> None:
        self.span = span
        self.context = context

    @property
    def place(self) -> Place:
        """Where it is."""
        own = self.span.get_span_context()
        return Place(own.trace_id, own.span_id, own.trace_flags.sampled)

    @property
    def traceparent(self) -> str:
        """How others name it."""
        return self.place.traceparent

    def set(self, name: str, value: Value) -> None:
        """Say something about it."""
        self.span.set_attribute(name, value)

    def fail(self, reason: str) -> None:
        """Say that it went wrong."""
        self.span.set_status(Status(StatusCode.ERROR, reason))

    def end(self) -> None:
        """It is over."""
        if self.span.is_recording():
            self.span.end()


class OpenTelemetryBackend:
    """A `Backend`."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("trinity")
        self._sampler = provider.sampler
        self._named = lru_cache(maxsize=KEPT)(self._name)

    def begin(
        self,
        name: str,
        *,
        parent: Place | None,
        own: Place | None,
        kind: Kind,
        attributes: Attributes,
        links: Sequence[Place],
        begun_ns: int,
    ) -> OpenTelemetrySpan:
        """Start a span."""
        context = self._context(parent, own)
        token: Token[Place | None] | None = None if own is None else _chosen.set(own)
        try:
            span = self._tracer.start_span(
                name,
                context=context,
                kind=KINDS[kind],
                attributes=attributes,
                links=[trace.Link(self._named(one)) for one in links],
                start_time=begun_ns,
            )
        finally:
            if token is not None:
                _chosen.reset(token)
        return OpenTelemetrySpan(span, trace.set_span_in_context(span, context))

    def enter(self, span: Span) -> Token[Context]:
        """Make a span of this backend the current one."""
        assert isinstance(span, OpenTelemetrySpan)
        return contexts.attach(span.context)

    def leave(self, token: object) -> None:
        """Have the one before it be the current one."""
        assert isinstance(token, Token)
        contexts.detach(token)

    def current(self) -> Place | None:
        """The current span, if it is written."""
        now = trace.get_current_span().get_span_context()
        if not now.is_valid or not now.trace_flags.sampled:
            return None
        return Place(now.trace_id, now.span_id, True)

    def _context(self, parent: Place | None, own: Place | None) -> Context:
        if own is not None:
            return Context()
        if parent is None:
            return contexts.get_current()
        return trace.set_span_in_context(trace.NonRecordingSpan(self._named(parent)), Context())

    def _name(self, place: Place) -> SpanContext:
        """Where it is not said, the sampler decides as it would for the trace's first span."""
        is_sampled = place.is_sampled
        if is_sampled is None:
            decided = self._sampler.should_sample(None, place.trace_id, "")
            is_sampled = decided.decision.is_sampled()
        flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
        return SpanContext(place.trace_id, place.span_id, is_remote=True, trace_flags=flags)
