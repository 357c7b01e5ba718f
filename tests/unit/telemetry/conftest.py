"""Spans kept in memory."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased

from trinity.runtime.telemetry import tracing
from trinity.runtime.telemetry.exporting import span_recorder
from trinity.runtime.telemetry.sdk_spans import OpenTelemetryBackend, ReadableExporter


def _switched_on(root: Sampler) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    processor = SimpleSpanProcessor(ReadableExporter(exporter, Resource({})))
    tracing.set_backend(OpenTelemetryBackend(ParentBased(root), span_recorder([processor])))
    return exporter


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Tracing on for the length of a test, every trace written."""
    yield _switched_on(ALWAYS_ON)
    tracing.set_backend(None)


@pytest.fixture
def half_of_spans() -> Iterator[InMemorySpanExporter]:
    """Tracing on, every second trace written."""
    yield _switched_on(TraceIdRatioBased(0.5))
    tracing.set_backend(None)
