"""Traces are known from the work itself, in every process alike."""

import uuid

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from trinity.runtime.telemetry import tracing
from trinity.runtime.telemetry.tracing import SpanContextRef


def test_a_task_has_one_trace_wherever_one_asks() -> None:
    place = tracing.task_span("5f2b1b4e-0c9e-5d7c-9a53-5a3d0d8b6b11")
    assert place == tracing.task_span("5f2b1b4e-0c9e-5d7c-9a53-5a3d0d8b6b11")
    # Fixed for ever: processes of different versions must agree.
    assert place.traceparent == "00-f09d54707f45ea07a9162d035b1887e8-99cc58ddc68280e5-00"
    assert place.trace_id != tracing.task_span(str(uuid.uuid4())).trace_id
    assert tracing.step_span("e", "s", 1, 2) != tracing.step_span("e", "s", 2, 1)


def test_a_header_names_a_place_and_back() -> None:
    place = SpanContextRef(0xABC, 0xDEF, True)
    assert tracing.parse_traceparent(place.traceparent) == place
    assert tracing.parse_traceparent(SpanContextRef(1, 2, False).traceparent) == SpanContextRef(
        1, 2, False
    )


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        f"00-{0:032x}-{1:016x}-01",
        f"00-{1:032x}-{0:016x}-01",
        f"ff-{1:032x}-{1:016x}-01",
        f"00-{1:032x}-{1:016x}-01-more",
        f"00-{1:032X}-{0xA:016X}-01",
    ],
)
def test_what_is_no_header_names_none(header: str) -> None:
    assert tracing.parse_traceparent(header) is None


def test_a_header_of_another_trace_is_not_followed() -> None:
    task = tracing.task_span("task")
    lease = SpanContextRef(task.trace_id, 7, True)
    assert tracing.span_in_task("task", lease.traceparent) == lease
    assert tracing.span_in_task("task", tracing.task_span("another").traceparent) == task
    assert tracing.span_in_task("task", "") == task


def test_spans_of_a_task_from_different_processes_are_one_trace(
    spans: InMemorySpanExporter,
) -> None:
    place = tracing.task_span("task")
    tracing.record_span("root", begun_ns=1, own=place)
    lease = tracing.record_span("lease", begun_ns=2, parent=place)
    with tracing.span("run", parent=tracing.parse_traceparent(lease)):
        tracing.span("call").end()
    root, leased, call, run = spans.get_finished_spans()
    assert {one.context.trace_id for one in (root, leased, call, run)} == {place.trace_id}
    assert root.context.span_id == place.span_id and root.parent is None
    assert parent_of(leased) == place.span_id
    assert parent_of(run) == leased.context.span_id
    assert parent_of(call) == run.context.span_id


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    number: int = span.parent.span_id
    return number


def test_a_span_that_was_chosen_chooses_no_other(spans: InMemorySpanExporter) -> None:
    tracing.record_span("root", begun_ns=1, own=tracing.task_span("task"))
    tracing.span("another").end()
    first, second = spans.get_finished_spans()
    assert first.context.trace_id != second.context.trace_id
    assert first.context.span_id != second.context.span_id


def test_every_process_decides_alike_which_traces_are_written(
    half_of_spans: InMemorySpanExporter,
) -> None:
    tasks = [f"task {i}" for i in range(400)]
    for task in tasks:
        tracing.record_span("root", begun_ns=1, own=tracing.task_span(task))
    written = {span.context.trace_id for span in half_of_spans.get_finished_spans()}
    assert 120 < len(written) < 280
    half_of_spans.clear()
    for task in tasks:
        tracing.record_span("elsewhere", begun_ns=1, parent=tracing.task_span(task))
    assert {s.context.trace_id for s in half_of_spans.get_finished_spans()} == written


def test_an_error_in_a_block_fails_its_span_and_goes_on(spans: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError), tracing.span("run"):
        raise ValueError("with something of a person's")
    (span,) = spans.get_finished_spans()
    assert not span.status.is_ok and span.status.description == "ValueError"
    assert tracing.current() is None


def test_links_are_bounded(spans: InMemorySpanExporter) -> None:
    tracing.record_span("step", begun_ns=1, links=[tracing.task_span(str(i)) for i in range(1_000)])
    (span,) = spans.get_finished_spans()
    assert len(span.links) == tracing.MAX_LINKS
