"""Tracing while it is on: with `exporting`, the only module that uses OpenTelemetry's tracing.

A run writes several spans while others wait for their turn on the event loop. So a span is a few
values here until the exporter's thread converts it to OpenTelemetry's form
(docs/decisions/0051-spans-are-made-where-they-are-sent.md).

This file alone uses the SDK's insides: `_translate_data` of the gRPC exporter, which would convert
each span twice, and `_batch_processor`. They hold for opentelemetry-sdk 1.40 to 1.45;
tests/unit/runtime/test_library_internals.py fails with another version.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from functools import lru_cache
from typing import cast

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2 as pb
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from trinity.runtime.telemetry.tracing import (
    CACHE_SIZE,
    Attributes,
    Kind,
    Span,
    SpanContextRef,
    Value,
)

Record = Callable[["OpenTelemetrySpan"], None]
_current: ContextVar["OpenTelemetrySpan | None"] = ContextVar("current", default=None)
KINDS: dict[Kind, SpanKind] = {
    "internal": SpanKind.INTERNAL,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
}
SCOPE = InstrumentationScope("trinity")
UNSET = Status(StatusCode.UNSET)
IS_KNOWN = pb.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
IS_REMOTE = IS_KNOWN | pb.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
PROTO_KINDS: dict[Kind, pb.Span.SpanKind.ValueType] = {
    "internal": pb.Span.SPAN_KIND_INTERNAL,
    "producer": pb.Span.SPAN_KIND_PRODUCER,
    "consumer": pb.Span.SPAN_KIND_CONSUMER,
    "client": pb.Span.SPAN_KIND_CLIENT,
    "server": pb.Span.SPAN_KIND_SERVER,
}
PROTO_UNSET = pb.Status()


class OpenTelemetrySpan:
    """A `Span`; changes after its end are ignored."""

    __slots__ = (
        "_record",
        "attributes",
        "begun_ns",
        "ended_ns",
        "failure",
        "kind",
        "links",
        "name",
        "parent",
        "place",
    )

    def __init__(
        self,
        name: str,
        place: SpanContextRef,
        parent: SpanContextRef | None,
        kind: Kind,
        attributes: Attributes,
        links: Sequence[SpanContextRef],
        begun_ns: int,
        record: Record,
    ) -> None:
        self.name = name
        self.place = place
        self.parent = parent
        self.kind = kind
        self.attributes = dict(attributes)
        self.links = links
        self.begun_ns = begun_ns
        self.ended_ns = 0
        self.failure: str | None = None
        self._record = record

    @property
    def traceparent(self) -> str:
        """The W3C header's value for this span."""
        return self.place.traceparent

    @property
    def context(self) -> SpanContext:
        """The context that a span processor reads."""
        return context_of(self.place)

    def set(self, name: str, value: Value) -> None:
        """Sets an attribute."""
        if not self.ended_ns:
            self.attributes[name] = value

    def fail(self, reason: str) -> None:
        """Marks the span as failed."""
        if not self.ended_ns:
            self.failure = reason

    def end(self) -> None:
        """Ends the span."""
        if not self.ended_ns:
            self.ended_ns = time.time_ns()
            if self.place.is_sampled:
                self._record(self)


class OpenTelemetryBackend:
    """A `Backend`: passes each ended span that is sampled to `record`."""

    def __init__(self, sampler: Sampler, record: Record) -> None:
        self._follows_parents = isinstance(sampler, ParentBased)
        self._sampler = sampler
        self._is_wanted = lru_cache(maxsize=CACHE_SIZE)(self._ask_sampler)
        self._record = record

    def begin(
        self,
        name: str,
        *,
        parent: SpanContextRef | None,
        own: SpanContextRef | None,
        kind: Kind,
        attributes: Attributes,
        links: Sequence[SpanContextRef],
        begun_ns: int,
    ) -> OpenTelemetrySpan:
        """Starts a span."""
        if own is None and parent is None and (around := _current.get()) is not None:
            parent = around.place
        if own is not None:
            parent = None
            trace_id, span_id = own.trace_id, own.span_id
        else:
            trace_id = random.getrandbits(128) if parent is None else parent.trace_id
            span_id = random.getrandbits(64)
        place = SpanContextRef(trace_id or 1, span_id or 1, self._is_sampled(trace_id, parent))
        return OpenTelemetrySpan(
            name, place, parent, kind, attributes, links, begun_ns, self._record
        )

    def attach(self, span: Span) -> Token[OpenTelemetrySpan | None]:
        """Makes a span of this backend the current one."""
        assert isinstance(span, OpenTelemetrySpan)
        return _current.set(span)

    def detach(self, token: object) -> None:
        """Restores the previous current span."""
        assert isinstance(token, Token)
        _current.reset(token)

    def current(self) -> SpanContextRef | None:
        """Returns the current span, if it is sampled."""
        span = _current.get()
        return span.place if span is not None and span.place.is_sampled else None

    def _is_sampled(self, trace_id: int, parent: SpanContextRef | None) -> bool:
        """Follows the parent's decision if it is known and counts, else the sampler's."""
        if self._follows_parents and parent is not None and parent.is_sampled is not None:
            return parent.is_sampled
        return self._is_wanted(trace_id)

    def _ask_sampler(self, trace_id: int) -> bool:
        """Samples by the trace's id alone, so that every process and span decides alike."""
        return bool(self._sampler.should_sample(None, trace_id, "").decision.is_sampled())


def context_of(place: SpanContextRef, *, is_remote: bool = False) -> SpanContext:
    """Converts a place to OpenTelemetry's form."""
    flags = TraceFlags(TraceFlags.SAMPLED if place.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(place.trace_id, place.span_id, is_remote=is_remote, trace_flags=flags)


class SpanConverter:
    """Converts the spans of one process."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._limits = SpanLimits()

    def attributes(self, span: OpenTelemetrySpan) -> Mapping[str, Value]:
        """Returns the attributes within the limits; they are seldom exceeded."""
        own = span.attributes
        most, longest = self._limits.max_span_attributes, self._limits.max_span_attribute_length
        if longest is None and (most is None or len(own) <= most):
            return own
        return cast(
            Mapping[str, Value],
            BoundedAttributes(most, own, immutable=True, max_value_len=longest),
        )

    def links(self, span: OpenTelemetrySpan) -> Sequence[SpanContextRef]:
        """Returns the links within the limit."""
        return span.links[: self._limits.max_links]

    def readable(self, span: OpenTelemetrySpan) -> ReadableSpan:
        """Converts a span to the form that OpenTelemetry's exporters take."""
        parent = None if span.parent is None else context_of(span.parent, is_remote=True)
        return ReadableSpan(
            span.name,
            context=span.context,
            parent=parent,
            resource=self._resource,
            attributes=self.attributes(span),
            links=tuple(Link(context_of(link, is_remote=True)) for link in self.links(span)),
            kind=KINDS[span.kind],
            status=UNSET if span.failure is None else Status(StatusCode.ERROR, span.failure),
            start_time=span.begun_ns,
            end_time=span.ended_ns,
            instrumentation_scope=SCOPE,
        )


class ReadableExporter(SpanExporter):
    """Converts this package's spans and passes them to another exporter."""

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        self._exporter = exporter
        self._form = SpanConverter(resource)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Exports spans; the processor passes on what it was given."""
        own_spans = cast(Sequence[OpenTelemetrySpan], spans)
        return self._exporter.export([self._form.readable(span) for span in own_spans])

    def shutdown(self) -> None:
        """Shuts down the inner exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flushes the inner exporter."""
        return self._exporter.force_flush(timeout_millis)


class GrpcSpanExporter(OTLPSpanExporter):
    """Exports this package's spans."""

    def __init__(self, resource: Resource) -> None:
        super().__init__()
        self._form = SpanConverter(resource)

    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        return request_of(cast(Sequence[OpenTelemetrySpan], data), self._form)


def shut_down_spans(processor: BatchSpanProcessor, timeout_millis: int) -> None:
    """Shuts down within a limit: `BatchSpanProcessor.shutdown` takes none and waits 30 seconds."""
    processor._batch_processor.shutdown(timeout_millis=timeout_millis)


def request_of(
    spans: Sequence[OpenTelemetrySpan], form: SpanConverter
) -> ExportTraceServiceRequest:
    """Returns the message that the SDK would make of these spans of one process; at least one."""
    request = encode_spans([form.readable(spans[0])])
    [scope] = request.resource_spans[0].scope_spans
    del scope.spans[:]
    for span in spans:
        _write(scope.spans.add(), span, form)
    return request


def _write(message: pb.Span, span: OpenTelemetrySpan, form: SpanConverter) -> None:
    message.name = span.name
    message.trace_id, message.span_id = _ids(span.place)
    message.kind = PROTO_KINDS[span.kind]
    message.start_time_unix_nano = span.begun_ns
    message.end_time_unix_nano = span.ended_ns
    message.flags = IS_KNOWN
    if span.parent is not None:
        _, message.parent_span_id = _ids(span.parent)
        message.flags = IS_REMOTE
    attributes = form.attributes(span)
    message.dropped_attributes_count = getattr(attributes, "dropped", 0)
    _write_attributes(message, attributes)
    for link in form.links(span):
        trace_id, span_id = _ids(link)
        message.links.add(trace_id=trace_id, span_id=span_id, flags=IS_REMOTE)
    if span.failure is None:
        message.status.CopyFrom(PROTO_UNSET)
    else:
        message.status.code = pb.Status.STATUS_CODE_ERROR
        message.status.message = span.failure


def _ids(place: SpanContextRef) -> tuple[bytes, bytes]:
    return place.trace_id.to_bytes(16, "big"), place.span_id.to_bytes(8, "big")


def _write_attributes(message: pb.Span, attributes: Mapping[str, Value]) -> None:
    for name, value in attributes.items():
        attribute = message.attributes.add()
        attribute.key = name
        _write_value(attribute.value, value)


def _write_value(message: AnyValue, value: Value) -> None:
    match value:
        case str():
            message.string_value = value
        case bool():
            message.bool_value = value
        case int():
            message.int_value = value
        case float():
            message.double_value = value
