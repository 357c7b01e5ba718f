"""Statements that reopen work which has ended."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.states import (
    AssignmentKind,
    AssignmentState,
    EvaluationState,
    ExperienceState,
    RunState,
    ScopeState,
)
from services.buffer.store.database import SCOPES_TOPIC, among, in_stage, notify
from services.buffer.store.tables import (
    NOW,
    assignment,
    evaluation,
    experience,
    pipeline_scope,
    run,
)
from trinity.types import StageKey

A = assignment.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Training work from some explore step on: its size, and the groups that gave no rows."""

    num_drawn: int
    unshaped: Sequence[str]
    """Groups whose runs succeeded but whose advantages could not be computed, in order of place."""
    given_up: Sequence[str]


async def find_lost(connection: AsyncConnection, key: StageKey, first_step: int) -> Lost:
    """Finds the groups that explore steps from `first_step` on have lost."""
    dead = sa.select(pipeline_scope.c.assignment_id).where(
        in_stage(pipeline_scope, key), pipeline_scope.c.state == ScopeState.DEAD
    )
    unshaped = set((await connection.execute(dead)).scalars())
    drawn = (
        sa.select(A.assignment_id, A.state)
        .where(
            in_stage(assignment, key),
            A.kind == AssignmentKind.TRAIN,
            A.explore_step >= first_step,
        )
        .order_by(A.explore_step, A.position)
    )
    rows = list(await connection.execute(drawn))
    return Lost(
        num_drawn=len(rows),
        unshaped=[row.assignment_id for row in rows if row.assignment_id in unshaped],
        given_up=[row.assignment_id for row in rows if row.state == AssignmentState.GIVEN_UP],
    )


async def find_cancelled(
    connection: AsyncConnection, key: StageKey, kind: AssignmentKind
) -> list[str]:
    """Returns the cancelled assignments of a kind."""
    statement = sa.select(A.assignment_id).where(
        in_stage(assignment, key), A.kind == kind, A.state == AssignmentState.CANCELLED
    )
    return list((await connection.execute(statement)).scalars())


async def reopen_evaluations(connection: AsyncConnection, key: StageKey) -> list[str]:
    """Reopens cancelled evaluations; returns their assignments that were cancelled or given up."""
    statement = (
        sa.update(evaluation)
        .where(in_stage(evaluation, key), evaluation.c.state == EvaluationState.CANCELLED)
        .values(state=EvaluationState.OPEN, opened_at=NOW, done_at=None)
        .returning(evaluation.c.version, evaluation.c.taskset)
    )
    reopened = [(row.version, row.taskset) for row in await connection.execute(statement)]
    if not reopened:
        return []
    tasks = sa.select(A.assignment_id).where(
        in_stage(assignment, key),
        A.kind == AssignmentKind.EVAL,
        A.state.in_([AssignmentState.CANCELLED, AssignmentState.GIVEN_UP]),
        sa.tuple_(A.explore_step, A.taskset).in_(reopened),
    )
    return list((await connection.execute(tasks)).scalars())


async def reopen_assignments(
    connection: AsyncConnection, key: StageKey, ids: Sequence[str]
) -> None:
    """Makes assignments pending again; won runs stay, failures of other runs are cleared."""
    await connection.execute(
        sa.update(run)
        .where(in_stage(run, key), among(run.c.assignment_id, ids), run.c.state != RunState.WON)
        .values(state=RunState.OPEN, num_failed=0, reason="")
    )
    num_open = (
        sa.select(sa.func.count())
        .select_from(run)
        .where(
            in_stage(run, key),
            run.c.assignment_id == A.assignment_id,
            run.c.state == RunState.OPEN,
        )
        .scalar_subquery()
    )
    await connection.execute(
        sa.update(assignment)
        .where(in_stage(assignment, key), among(A.assignment_id, ids))
        .values(
            state=AssignmentState.PENDING,
            reason="",
            lease_token=None,
            lease_until=None,
            num_open_runs=num_open,
        )
    )


async def reopen_left_out_scopes(
    connection: AsyncConnection, key: StageKey, ids: Sequence[str]
) -> None:
    """Lets the pipeline retry groups that it had left out."""
    await connection.execute(
        sa.update(pipeline_scope)
        .where(in_stage(pipeline_scope, key), among(pipeline_scope.c.assignment_id, ids))
        .values(state=ScopeState.OPEN, attempts=0, error="")
    )
    await connection.execute(
        sa.update(experience)
        .where(
            in_stage(experience, key),
            among(experience.c.assignment_id, ids),
            experience.c.state == ExperienceState.FILTERED,
        )
        .values(state=ExperienceState.RAW, reason="")
    )
    await notify(connection, SCOPES_TOPIC)


async def forget_refills(connection: AsyncConnection, key: StageKey, explore_step: int) -> None:
    """Resets the refill rounds of an explore step."""
    await connection.execute(
        sa.update(assignment)
        .where(
            in_stage(assignment, key),
            A.kind == AssignmentKind.TRAIN,
            A.explore_step == explore_step,
        )
        .values(refill_round=0)
    )
