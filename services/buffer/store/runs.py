"""Statements on runs and the attempts at them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.judgement import Verdict
from services.buffer.domain.results import AssignmentView, KnownAttempt, OpenRun, Result
from services.buffer.domain.states import (
    OPEN_ASSIGNMENT,
    AssignmentKind,
    AssignmentState,
    RunState,
)
from services.buffer.store.database import (
    encode_numbers,
    in_stage,
    insert_rows,
    key_columns,
    same_stage,
)
from services.buffer.store.tables import assignment, run, run_attempt
from trinity.types import StageKey


async def load_views(
    connection: AsyncConnection, key: StageKey, ids: Iterable[str]
) -> dict[str, AssignmentView]:
    """Assignments with the state of each of their runs."""
    wanted = list(ids)
    runs: dict[str, dict[int, OpenRun]] = defaultdict(dict)
    statement = sa.select(run).where(in_stage(run, key), run.c.assignment_id.in_(wanted))
    for row in await connection.execute(statement):
        runs[row.assignment_id][row.run] = OpenRun(
            state=RunState(row.state), num_failed=row.num_failed, reason=row.reason
        )
    chosen = sa.select(assignment).where(
        in_stage(assignment, key), assignment.c.assignment_id.in_(wanted)
    )
    return {row.assignment_id: _view(row, runs) for row in await connection.execute(chosen)}


def _view(row: sa.Row[Any], runs: dict[str, dict[int, OpenRun]]) -> AssignmentView:
    return AssignmentView(
        assignment_id=row.assignment_id,
        kind=AssignmentKind(row.kind),
        state=AssignmentState(row.state),
        taskset=row.taskset,
        task_index=row.task_index,
        explore_step=row.explore_step,
        position=row.position,
        required_version=row.required_version,
        runs=runs[row.assignment_id],
    )


async def load_known(
    connection: AsyncConnection, key: StageKey, results: Sequence[Result]
) -> list[KnownAttempt]:
    """Attempts in the database under the place or the sequence of any of these results."""
    place = sa.tuple_(run_attempt.c.assignment_id, run_attempt.c.run, run_attempt.c.attempt)
    sent = sa.tuple_(run_attempt.c.producer, run_attempt.c.sequence)
    same_place = sa.and_(
        in_stage(run_attempt, key), place.in_([result.place for result in results])
    )
    same_sequence = sent.in_([(result.producer, result.sequence) for result in results])
    rows = await connection.execute(sa.select(run_attempt).where(sa.or_(same_place, same_sequence)))
    return [
        KnownAttempt(
            place=(row.assignment_id, row.run, row.attempt),
            producer=row.producer,
            sequence=row.sequence,
            content_hash=row.content_hash,
            state=row.state,
        )
        for row in rows
    ]


async def insert_attempts(
    connection: AsyncConnection, key: StageKey, verdicts: Sequence[Verdict]
) -> None:
    """Store attempts that are new."""
    rows = [
        {
            **key_columns(key),
            "assignment_id": verdict.result.assignment_id,
            "run": verdict.result.run,
            "attempt": verdict.result.attempt,
            "producer": verdict.result.producer,
            "sequence": verdict.result.sequence,
            "state": verdict.state,
            "reason": verdict.result.reason,
            "content_hash": verdict.result.content_hash,
            "metrics": encode_numbers(verdict.result.metrics),
            "duration_seconds": verdict.result.duration_seconds,
        }
        for verdict in verdicts
    ]
    await insert_rows(connection, run_attempt, rows)


async def update_runs(
    connection: AsyncConnection, key: StageKey, changed: Sequence[tuple[str, int, OpenRun]]
) -> None:
    """Store how runs stand after their results were judged."""
    if not changed:
        return
    statement = (
        sa.update(run)
        .where(
            in_stage(run, key),
            run.c.assignment_id == sa.bindparam("own_assignment"),
            run.c.run == sa.bindparam("own_run"),
        )
        .values(
            state=sa.bindparam("new_state"),
            num_failed=sa.bindparam("new_num_failed"),
            reason=sa.bindparam("new_reason"),
        )
    )
    values = [
        {
            "own_assignment": own_id,
            "own_run": number,
            "new_state": one.state,
            "new_num_failed": one.num_failed,
            "new_reason": one.reason,
        }
        for own_id, number, one in changed
    ]
    await connection.execute(statement, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWork:
    """Assignments of an explore step that have not ended."""

    explore_step: int
    num_open: int
    num_pending: int
    num_all: int
    holders: tuple[str, ...]
    required_version: int
    """Weights that the newest of it needs."""


async def count_open_runs(connection: AsyncConnection, key: StageKey) -> int:
    """Runs of open training assignments that have no end yet."""
    statement = (
        sa.select(sa.func.count())
        .select_from(run)
        .join(
            assignment,
            sa.and_(same_stage(run, assignment), run.c.assignment_id == assignment.c.assignment_id),
        )
        .where(
            in_stage(assignment, key),
            assignment.c.kind == AssignmentKind.TRAIN,
            assignment.c.state.in_(OPEN_ASSIGNMENT),
            run.c.state == RunState.OPEN,
        )
    )
    return (await connection.execute(statement)).scalar_one()


async def oldest_open_work(
    connection: AsyncConnection, key: StageKey, kind: AssignmentKind
) -> OpenWork | None:
    """The earliest explore step (of an evaluation: version) with open assignments, if any."""
    is_open = assignment.c.state.in_(OPEN_ASSIGNMENT)
    count = sa.func.count()
    statement = (
        sa.select(
            assignment.c.explore_step,
            count.filter(is_open).label("num_open"),
            count.filter(assignment.c.state == AssignmentState.PENDING).label("num_pending"),
            count.label("num_all"),
            sa.func.array_agg(sa.distinct(assignment.c.leased_by))
            .filter(assignment.c.state == AssignmentState.LEASED)
            .label("holders"),
            sa.func.max(assignment.c.required_version).label("required_version"),
        )
        .where(in_stage(assignment, key), assignment.c.kind == kind)
        .group_by(assignment.c.explore_step)
        .having(count.filter(is_open) > 0)
        .order_by(assignment.c.explore_step)
        .limit(1)
    )
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    return OpenWork(
        explore_step=row.explore_step,
        num_open=row.num_open,
        num_pending=row.num_pending,
        num_all=row.num_all,
        holders=tuple(str(holder) for holder in row.holders or ()),
        required_version=row.required_version,
    )
