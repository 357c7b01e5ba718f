"""Converts spans to OpenTelemetry's form, in the exporter's thread."""

from collections.abc import Sequence
from typing import cast

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from trinity.telemetry.backend import OpenTelemetrySpan
from trinity.telemetry.span_form import SpanForm


class ReadableExporter(SpanExporter):
    """Converts this package's spans and passes them to another exporter."""

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        self._exporter = exporter
        self._form = SpanForm(resource)

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
