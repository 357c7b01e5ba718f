"""A run's calls of the engine are in its trace, wherever its workflow runs."""

from pathlib import Path

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.explorer.telemetry import begin_result_span, record_run, run_span
from services.explorer.types import Attempt, WeightsId, attempt_result_to_proto
from tests.unit.explorer.builders import KEY, build_assignment
from tests.unit.explorer.runs import outcome_of
from tests.unit.explorer.test_runner import registered
from trinity.runtime.telemetry import names, tracing

__all__ = ["registered"]


async def test_calls_from_a_thread_are_in_the_trace_of_the_task(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    assignment = build_assignment()
    attempt = Attempt(key=KEY, assignment=assignment, run=1, number=2)
    with run_span(attempt, WeightsId(version=4, incarnation=2)) as span:
        outcome = await outcome_of(tmp_path, default_workflow_type="test_blocking")
        record_run(span, outcome)
    *calls, run = spans.get_finished_spans()
    task = tracing.task_span(assignment.id)
    assert [call.name for call in calls] == ["text_completion"] * 2
    assert {call.parent.span_id for call in calls if call.parent} == {run.context.span_id}
    assert run.context.trace_id == task.trace_id
    assert [link.context.span_id for link in run.links] == [
        tracing.step_span(KEY.experiment_id, KEY.stage, 2, 4).span_id
    ]
    assert [one.trace_id for one in outcome.experiences] == [task.trace_hex] * 2
    message = attempt_result_to_proto(outcome)
    message.traceparent = span.traceparent
    begin_result_span(message).end()
    sent = spans.get_finished_spans()[-1]
    assert sent.name == names.PUBLISH and sent.parent is not None
    assert sent.parent.span_id == run.context.span_id
    assert tracing.parse_traceparent(message.traceparent) == tracing.SpanContextRef(
        task.trace_id, sent.context.span_id, True
    )


async def test_a_run_that_fails_says_so_without_its_words(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    attempt = Attempt(key=KEY, assignment=build_assignment(), run=1, number=2)
    with run_span(attempt, WeightsId(version=4, incarnation=2)) as span:
        record_run(span, await outcome_of(tmp_path, default_reward_fn_type="test_failing"))
    run = spans.get_finished_spans()[-1]
    assert not run.status.is_ok
    assert "cannot score" not in run.to_json()


async def test_off_a_sample_names_no_trace(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path)
    assert [one.trace_id for one in outcome.experiences] == [""]
    assert attempt_result_to_proto(outcome).traceparent == ""
