"""Spans in OpenTelemetry's form, made in the exporter's thread."""

from collections.abc import Mapping, Sequence
from typing import cast

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from trinity.telemetry.backend import OpenTelemetrySpan, context_of
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


class ReadableExporter(SpanExporter):
    """Turns this package's spans into OpenTelemetry's, and has another exporter send them."""

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        self._exporter = exporter
        self._resource = resource
        self._limits = SpanLimits()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send them; the processor gives on what it was given."""
        given = cast(Sequence[OpenTelemetrySpan], spans)
        return self._exporter.export([self._readable(span) for span in given])

    def shutdown(self) -> None:
        """Send nothing more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what is left."""
        return self._exporter.force_flush(timeout_millis)

    def _readable(self, span: OpenTelemetrySpan) -> ReadableSpan:
        parent = None if span.parent is None else context_of(span.parent, is_remote=True)
        return ReadableSpan(
            span.name,
            context=span.context,
            parent=parent,
            resource=self._resource,
            attributes=self._within_limits(span.attributes),
            links=tuple(
                Link(context_of(one, is_remote=True))
                for one in span.links[: self._limits.max_links]
            ),
            kind=KINDS[span.kind],
            status=UNSET if span.failure is None else Status(StatusCode.ERROR, span.failure),
            start_time=span.begun_ns,
            end_time=span.ended_ns,
            instrumentation_scope=SCOPE,
        )

    def _within_limits(self, attributes: Mapping[str, Value]) -> Mapping[str, Value]:
        """As the standard variables say; there are fewer and shorter ones than they allow else."""
        most, longest = self._limits.max_span_attributes, self._limits.max_span_attribute_length
        if longest is None and (most is None or len(attributes) <= most):
            return attributes
        return cast(
            Mapping[str, Value],
            BoundedAttributes(most, attributes, immutable=True, max_value_len=longest),
        )
