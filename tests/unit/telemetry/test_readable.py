"""What a service says of a span is what OpenTelemetry's exporters get."""

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from opentelemetry.trace import SpanKind, StatusCode

from trinity.runtime.telemetry import tracing
from trinity.runtime.telemetry.exporting import span_recorder
from trinity.runtime.telemetry.sdk_spans import OpenTelemetryBackend, ReadableExporter


def switch_on(exporter: InMemorySpanExporter) -> None:
    processor = SimpleSpanProcessor(ReadableExporter(exporter, Resource({"service.name": "own"})))
    tracing.set_backend(OpenTelemetryBackend(ALWAYS_ON, span_recorder([processor])))


def test_all_of_it_arrives(spans: InMemorySpanExporter) -> None:
    task, other = tracing.task_span("a"), tracing.task_span("b")
    with tracing.span("around", own=task):
        span = tracing.begin("inside", kind="producer", attributes={"first": 1}, links=[other])
        span.set("second", 2.5)
        span.fail("a reason")
        span.end()
    span.set("third", True)
    span.end()
    inside, around = spans.get_finished_spans()
    assert (inside.name, inside.kind, inside.status.status_code, inside.status.description) == (
        *("inside", SpanKind.PRODUCER, StatusCode.ERROR),
        "a reason",
    )
    assert dict(inside.attributes or {}) == {"first": 1, "second": 2.5}
    assert [(one.context.trace_id, one.context.span_id) for one in inside.links] == [
        (other.trace_id, other.span_id)
    ]
    assert inside.context is not None and around.context is not None and inside.parent is not None
    assert (around.context.trace_id, around.context.span_id) == (task.trace_id, task.span_id)
    assert around.parent is None and around.status.status_code is StatusCode.UNSET
    assert inside.parent.span_id == task.span_id and inside.context.trace_id == task.trace_id
    times = around.start_time, inside.start_time, inside.end_time, around.end_time
    assert sorted(times, key=lambda time: time or 0) == list(times)


def test_limits_are_those_of_the_standard_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4")
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "2")
    monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "1")
    exporter = InMemorySpanExporter()
    switch_on(exporter)
    links = [tracing.task_span("a"), tracing.task_span("b")]
    tracing.begin("long", attributes={"a": "12", "b": "34", "c": "56789"}, links=links).end()
    tracing.set_backend(None)
    (span,) = exporter.get_finished_spans()
    assert dict(span.attributes or {}) == {"b": "34", "c": "5678"}
    assert span.dropped_attributes == 1 and len(span.links) == 1
    assert span.resource.attributes["service.name"] == "own"


def test_a_trace_that_nobody_wants_is_not_sent() -> None:
    exporter = InMemorySpanExporter()
    recorded = span_recorder([SimpleSpanProcessor(ReadableExporter(exporter, Resource({})))])
    tracing.set_backend(OpenTelemetryBackend(ALWAYS_OFF, recorded))
    with tracing.span("around"):
        assert tracing.headers() == {}
        tracing.begin("inside").end()
    tracing.set_backend(None)
    assert exporter.get_finished_spans() == ()
