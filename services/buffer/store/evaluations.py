"""Statements on evaluations."""

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.evaluation import MetricSummary
from services.buffer.domain.states import (
    AssignmentKind,
    EvaluationState,
    RunState,
)
from services.buffer.store.database import among, in_stage, key_columns
from services.buffer.store.tables import NOW, assignment, evaluation, run
from trinity.types import StageKey


async def insert_evaluation(
    connection: AsyncConnection, key: StageKey, version: int, taskset: str, num_tasks: int
) -> bool:
    """Opens the evaluation of a version on a taskset; False if it was opened before."""
    statement = (
        insert(evaluation)
        .values(
            **key_columns(key),
            version=version,
            taskset=taskset,
            state=EvaluationState.OPEN,
            num_tasks=num_tasks,
            figures=[],
        )
        .on_conflict_do_nothing()
        .returning(evaluation.c.version)
    )
    return (await connection.execute(statement)).first() is not None


async def open_versions(connection: AsyncConnection, key: StageKey) -> list[int]:
    """Returns the versions that open evaluations are pinned to."""
    statement = (
        sa.select(evaluation.c.version)
        .distinct()
        .where(in_stage(evaluation, key), evaluation.c.state == EvaluationState.OPEN)
        .order_by(evaluation.c.version)
    )
    return list((await connection.execute(statement)).scalars())


async def done_versions(connection: AsyncConnection, key: StageKey) -> list[int]:
    """Returns the versions whose evaluations are all done."""
    has_figures = sa.func.bool_and(evaluation.c.state == EvaluationState.DONE)
    statement = (
        sa.select(evaluation.c.version)
        .where(in_stage(evaluation, key))
        .group_by(evaluation.c.version)
        .having(has_figures)
    )
    return list((await connection.execute(statement)).scalars())


async def count_unfinished(
    connection: AsyncConnection, key: StageKey, version: int, taskset: str
) -> int:
    """Counts the open assignments of an evaluation."""
    statement = (
        sa.select(sa.func.count())
        .select_from(assignment)
        .where(
            in_stage(assignment, key),
            assignment.c.kind == AssignmentKind.EVAL,
            assignment.c.explore_step == version,
            assignment.c.taskset == taskset,
            assignment.c.is_open,
        )
    )
    return (await connection.execute(statement)).scalar_one()


async def evaluated_assignments(
    connection: AsyncConnection, key: StageKey, version: int, taskset: str
) -> list[str]:
    """Returns the ids of the assignments of an evaluation, in order."""
    statement = (
        sa.select(assignment.c.assignment_id)
        .where(
            in_stage(assignment, key),
            assignment.c.kind == AssignmentKind.EVAL,
            assignment.c.explore_step == version,
            assignment.c.taskset == taskset,
        )
        .order_by(assignment.c.position)
    )
    return list((await connection.execute(statement)).scalars())


async def count_failed_runs(
    connection: AsyncConnection, key: StageKey, assignment_ids: Sequence[str]
) -> int:
    """Counts the runs of these assignments that were given up."""
    statement = (
        sa.select(sa.func.count())
        .select_from(run)
        .where(
            in_stage(run, key),
            among(run.c.assignment_id, assignment_ids),
            run.c.state == RunState.GIVEN_UP,
        )
    )
    return (await connection.execute(statement)).scalar_one()


async def finish_evaluation(
    connection: AsyncConnection,
    key: StageKey,
    version: int,
    taskset: str,
    *,
    num_tasks: int,
    num_failed: int,
    figures: Sequence[MetricSummary],
) -> float:
    """Stores the metrics of an evaluation; returns its duration in seconds."""
    statement = (
        sa.update(evaluation)
        .where(
            in_stage(evaluation, key),
            evaluation.c.version == version,
            evaluation.c.taskset == taskset,
        )
        .values(
            state=EvaluationState.DONE,
            num_tasks=num_tasks,
            num_failed=num_failed,
            figures=[asdict(figure) for figure in figures],
            done_at=NOW,
        )
        .returning(sa.extract("epoch", evaluation.c.done_at - evaluation.c.opened_at))
    )
    return float((await connection.execute(statement)).scalar_one())


async def cancel_evaluations(connection: AsyncConnection, key: StageKey) -> None:
    """Cancels open evaluations; they get no metrics."""
    await connection.execute(
        sa.update(evaluation)
        .where(in_stage(evaluation, key), evaluation.c.state == EvaluationState.OPEN)
        .values(state=EvaluationState.CANCELLED, done_at=NOW)
    )
