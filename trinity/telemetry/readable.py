"""Spans in OpenTelemetry's form, made in the exporter's thread."""

from collections.abc import Sequence
from typing import cast

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from trinity.telemetry.backend import OpenTelemetrySpan
from trinity.telemetry.span_form import SpanForm


class ReadableExporter(SpanExporter):
    """Turns this package's spans into OpenTelemetry's, and has another exporter send them."""

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        self._exporter = exporter
        self._form = SpanForm(resource)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send them; the processor gives on what it was given."""
        given = cast(Sequence[OpenTelemetrySpan], spans)
        return self._exporter.export([self._form.readable(span) for span in given])

    def shutdown(self) -> None:
        """Send nothing more."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what is left."""
        return self._exporter.force_flush(timeout_millis)
