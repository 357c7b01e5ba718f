"""Telemetry of the buffer: spans in the traces of tasks, and metrics."""

import time
from collections.abc import Sequence

from nats.aio.msg import Msg

from services.buffer.domain.results import CommitDecision
from services.buffer.domain.stage import AssignmentKind
from services.buffer.store.assignments import LeaseGrant, NewAssignment, assignment_id
from services.buffer.store.pipeline import GroupResult
from services.buffer.store.ready_rows import ReadyRow
from trinity.runtime.telemetry import metrics, names, tracing
from trinity.types import StageKey


def record_lease(grant: LeaseGrant, begun_ns: int) -> str:
    """Records the lease of a task; returns the trace context to send with it."""
    metrics.ASSIGNMENTS_LEASED.add(1, {names.KIND: grant.kind.value})
    if not tracing.is_on():
        return ""
    return tracing.record_span(
        names.LEASE,
        begun_ns=begun_ns,
        parent=tracing.task_span(grant.assignment_id),
        attributes={
            names.ASSIGNMENT: grant.assignment_id,
            names.NUM_RUNS: len(grant.runs),
            names.ATTEMPT: grant.first_attempt,
            names.VERSION: grant.required_version,
        },
    )


def record_stored(
    messages: Sequence[Msg], decisions: Sequence[CommitDecision], begun_ns: int
) -> None:
    """Records committed results in the traces of their tasks, and messages in their senders'."""
    if metrics.is_on():
        metrics.STORE_SECONDS.record((time.time_ns() - begun_ns) / 1e9)
        for decision in decisions:
            metrics.STORED.add(1, {names.FATE: decision.status.value})
    if not tracing.is_on():
        return
    for message in messages:
        if sent := tracing.parse_traceparent((message.headers or {}).get("traceparent", "")):
            about = {names.MESSAGING_SYSTEM: "nats"}
            tracing.record_span(
                names.PROCESS, begun_ns=begun_ns, parent=sent, kind="consumer", attributes=about
            )
    for decision in decisions:
        result = decision.result
        tracing.record_span(
            names.STORE,
            begun_ns=begun_ns,
            parent=tracing.span_in_task(result.assignment_id, result.traceparent),
            kind="consumer",
            attributes={
                names.RUN: result.run,
                names.ATTEMPT: result.attempt,
                names.FATE: decision.status.value,
                names.NUM_EXPERIENCES: len(result.experiences),
            },
        )


def record_groups(done: Sequence[GroupResult], begun_ns: int) -> None:
    """Records groups that went through the pipeline."""
    if metrics.is_on():
        metrics.SHAPE_SECONDS.record((time.time_ns() - begun_ns) / 1e9)
        metrics.GROUPS_SHAPED.add(len(done))
    if not tracing.is_on():
        return
    for group in done:
        span = tracing.span(
            names.PIPELINE,
            parent=tracing.task_span(group.claim.assignment_id),
            begun_ns=begun_ns,
            attributes={
                names.OPERATOR: group.operator,
                names.NUM_ROWS: len(group.outcome.rows),
                names.NUM_FILTERED: len(group.outcome.left_out),
            },
        )
        if group.outcome.error:
            span.fail("the group cannot be shaped")
        span.end()


def record_batch_span(
    key: StageKey, step: int, rows: Sequence[ReadyRow], incarnation: int, begun_ns: int
) -> None:
    """Records a batch of these rows, in the trace of the calling train step."""
    metrics.BATCH_ROWS.add(len(rows))
    if not tracing.is_on():
        return
    groups = dict.fromkeys((row.measured.explore_step, row.measured.position) for row in rows)
    linked = list(groups)[: tracing.MAX_LINKS]
    tracing.record_span(
        names.BATCH,
        begun_ns=begun_ns,
        parent=tracing.current()
        or tracing.step_span(key.experiment_id, key.stage, incarnation, step),
        links=[
            tracing.task_span(assignment_id(key, AssignmentKind.TRAIN, explore_step, position))
            for explore_step, position in linked
        ],
        attributes={
            names.STEP: step,
            names.NUM_ROWS: len(rows),
            names.LINKS_LEFT_OUT: len(groups) - len(linked),
        },
    )


def record_drawn_tasks(key: StageKey, new: Sequence[NewAssignment]) -> None:
    """Records drawn tasks, whose traces begin here."""
    if not tracing.is_on():
        return
    for assignment in new:
        own_id = assignment_id(key, assignment.kind, assignment.explore_step, assignment.position)
        tracing.record_span(
            names.TASK,
            own=tracing.task_span(own_id),
            attributes={
                names.RL_RUN: key.experiment_id,
                names.TENANT: key.tenant,
                names.STAGE: key.stage,
                names.ASSIGNMENT: own_id,
                names.KIND: assignment.kind.value,
                names.TASKSET: assignment.taskset,
                names.TASK_INDEX: assignment.task_index,
                names.EXPLORE_STEP: assignment.explore_step,
                names.POSITION: assignment.position,
            },
        )
