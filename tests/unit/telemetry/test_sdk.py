"""What a service says of a span is what OpenTelemetry's exporters get."""

from importlib.metadata import EntryPoints

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.unit.telemetry.conftest import switch_on
from trinity.errors import UserError
from trinity.runtime.telemetry import sdk, tracing
from trinity.runtime.telemetry.lifecycle import ExportConfig


def test_all_of_it_arrives(spans: InMemorySpanExporter) -> None:
    task, other = tracing.task_span("a"), tracing.task_span("b")
    with tracing.span("around", own=task):
        span = tracing.span("inside", kind="producer", attributes={"first": 1}, links=[other])
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
    exporter = switch_on("parentbased_always_on")
    links = [tracing.task_span("a"), tracing.task_span("b")]
    tracing.span("long", attributes={"a": "12", "b": "34", "c": "56789"}, links=links).end()
    tracing.set_tracer(None)
    (span,) = exporter.get_finished_spans()
    assert dict(span.attributes or {}) == {"b": "34", "c": "5678"}
    assert span.dropped_attributes == 1 and len(span.links) == 1
    assert span.resource.attributes["service.name"] == "own"


def test_a_trace_that_nobody_wants_is_not_sent() -> None:
    exporter = switch_on("always_off")
    with tracing.span("around"):
        assert tracing.headers() == {}
        tracing.span("inside").end()
    tracing.set_tracer(None)
    assert exporter.get_finished_spans() == ()


def test_a_span_of_a_users_own_tracer_is_in_the_trace_of_the_task(
    spans: InMemorySpanExporter,
) -> None:
    users_tracer = TracerProvider(shutdown_on_exit=False).get_tracer("user")
    with (
        tracing.span("run", own=tracing.task_span("a")),
        users_tracer.start_as_current_span("x") as span,
    ):
        tracing.span("call").end()
        users = span.get_span_context()
    call, run = spans.get_finished_spans()
    assert run.context is not None and call.parent is not None
    assert users.trace_id == run.context.trace_id == tracing.task_span("a").trace_id
    assert call.parent.span_id == users.span_id


@pytest.mark.parametrize(("protocol", "package"), [("grpc", "grpc"), ("http/protobuf", "http")])
def test_a_missing_exporter_is_named(
    protocol: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk, "entry_points", lambda **_: EntryPoints())
    wanted = ExportConfig(exporters=("otlp",), protocol=protocol)
    with pytest.raises(UserError, match=f"opentelemetry-exporter-otlp-proto-{package}:"):
        sdk.set_up(wanted, ExportConfig(), "trinity-test", {})
