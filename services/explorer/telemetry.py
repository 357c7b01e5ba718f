"""The explorer's telemetry: spans and metrics of runs and of results."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from services.explorer.counters import RolloutCounters
from services.explorer.types import Attempt, AttemptResult, ResultReport, WeightsId, WeightsVersion
from trinity.api.v1.experience_pb2 import RunResult
from trinity.telemetry import metrics, names, tracing
from trinity.telemetry.tracing import Span
from trinity.types import StageKey


@contextmanager
def run_span(attempt: Attempt, weights: WeightsId) -> Iterator[Span]:
    """Opens a run's span in its task's trace, linked to the train step that made its weights."""
    if not tracing.is_on():
        yield tracing.NO_SPAN
        return
    key, assignment = attempt.key, attempt.assignment
    span = tracing.span(
        names.SAMPLE,
        parent=tracing.span_in_task(assignment.id, assignment.traceparent),
        links=[
            tracing.step_span(key.experiment_id, key.stage, weights.incarnation, weights.version)
        ],
        attributes={
            names.RL_RUN: key.experiment_id,
            names.ASSIGNMENT: assignment.id,
            names.RUN: attempt.run,
            names.ATTEMPT: attempt.number,
            names.VERSION: weights.version,
            names.INCARNATION: weights.incarnation,
        },
    )
    with span as entered:
        yield entered


def record_run(span: Span, result: AttemptResult) -> None:
    """Records the end of a run, without its reason, which may quote the user's data."""
    fate = "complete" if result.is_complete else "failed"
    metrics.SAMPLE_SECONDS.record(result.duration_seconds, {names.FATE: fate})
    for experience in result.experiences:
        if experience.reward is not None:
            metrics.REWARD.record(experience.reward)
    span.set(names.FATE, fate)
    span.set(names.NUM_EXPERIENCES, len(result.experiences))
    if not result.is_complete:
        span.fail("the run failed")


def begin_result_span(message: RunResult) -> Span:
    """Begins a span from a result's end to the report on it, and puts its context in the result."""
    if not tracing.is_on():
        return tracing.NO_SPAN
    span = tracing.begin(
        names.PUBLISH,
        parent=tracing.span_in_task(message.assignment_id, message.traceparent),
        kind="producer",
        attributes={names.RUN: message.run, names.ATTEMPT: message.attempt},
    )
    message.traceparent = span.traceparent
    return span


def end_result_span(
    span: Span, report: ResultReport, num_sends: int, waited_seconds: float
) -> None:
    """Records the buffer's report on a result."""
    fate = report.outcome.value
    metrics.CONFIRM_SECONDS.record(waited_seconds, {names.FATE: fate})
    span.set(names.FATE, fate)
    span.set(names.NUM_SENDS, num_sends)
    span.end()


def send_span(results: Sequence[Span]) -> AbstractContextManager[Span]:
    """Opens a broker message's span in the trace of its first result, linked to the others'."""
    if not tracing.is_on():
        return tracing.NO_SPAN
    first, *others = (span.place for span in results)
    return tracing.span(
        names.SEND,
        parent=first,
        kind="producer",
        links=[place for place in others if place is not None],
        attributes={names.MESSAGING_SYSTEM: "nats", names.MESSAGING_BATCH: len(results)},
    )


@contextmanager
def load_span(key: StageKey, weights: WeightsVersion) -> Iterator[None]:
    """Opens the span of loading weights, in the trace of the train step that made them."""
    begun = time.perf_counter()
    made_by = tracing.step_span(
        key.experiment_id, key.stage, weights.id.incarnation, weights.id.version
    )
    about = {names.VERSION: weights.id.version, names.INCARNATION: weights.id.incarnation}
    with tracing.span(names.LOAD, parent=made_by, attributes=about):
        yield
    metrics.SYNC_SECONDS.record(time.perf_counter() - begun, {"trinity.sync": "load"})
    metrics.LOADED_VERSION.set(weights.id.version)


class OutboxGauges(Protocol):
    """The results that are not confirmed."""

    def __len__(self) -> int: ...

    @property
    def oldest_seconds(self) -> float: ...


def register_gauges(counters: RolloutCounters, outbox: OutboxGauges) -> None:
    """Registers the gauges of running and unconfirmed work."""
    metrics.ACTIVE_RUNS.register_callback(lambda: [(counters.num_running, {})])
    metrics.OUTBOX_RESULTS.register_callback(lambda: [(len(outbox), {})])
    metrics.OUTBOX_SECONDS.register_callback(lambda: [(outbox.oldest_seconds, {})])
