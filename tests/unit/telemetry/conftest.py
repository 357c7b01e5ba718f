"""Spans kept in memory."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from trinity.runtime.telemetry import tracing
from trinity.runtime.telemetry.sdk import SdkTracer


def switch_on(sampler: str, argument: str = "") -> InMemorySpanExporter:
    """Tracing on, with the sampler that the standard variables name."""
    exporter = InMemorySpanExporter()
    variables = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    with mock.patch.dict(os.environ, variables):
        tracer = SdkTracer(Resource({"service.name": "own"}), [SimpleSpanProcessor(exporter)])
    tracing.set_tracer(tracer)
    return exporter


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Tracing on for the length of a test, every trace written."""
    yield switch_on("parentbased_always_on")
    tracing.set_tracer(None)


@pytest.fixture
def half_of_spans() -> Iterator[InMemorySpanExporter]:
    """Tracing on, every second trace written."""
    yield switch_on("parentbased_traceidratio", "0.5")
    tracing.set_tracer(None)
