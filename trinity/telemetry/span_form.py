"""Applies the standard variables' limits to spans and converts them to OpenTelemetry's form."""

from collections.abc import Mapping, Sequence
from typing import cast

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from trinity.telemetry.backend import OpenTelemetrySpan, context_of
from trinity.telemetry.places import Place
from trinity.telemetry.spans import Kind, Value

KINDS: dict[Kind, SpanKind] = {
    "internal": SpanKind.INTERNAL,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
}
SCOPE = InstrumentationScope("trinity")
UNSET = Status(StatusCode.UNSET)


class SpanForm:
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

    def links(self, span: OpenTelemetrySpan) -> Sequence[Place]:
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
