"""Statements on runs and the attempts at them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
    among,
    among_numbers,
    encode_numbers,
    in_stage,
    insert_rows,
    key_columns,
    one_of,
)
from services.buffer.store.tables import assignment, run, run_attempt
from trinity.types import StageKey


async def load_views(
    connection: AsyncConnection, key: StageKey, ids: Iterable[str]
) -> dict[str, AssignmentView]:
    """Assignments with the state of each of their runs."""
    wanted = list(ids)
    runs: dict[str, dict[int, OpenRun]] = defaultdict(dict)
    statement = sa.select(run).where(in_stage(run, key), among(run.c.assignment_id, wanted))
    for row in await connection.execute(statement):
        runs[row.assignment_id][row.run] = OpenRun(
            state=RunState(row.state), num_failed=row.num_failed, reason=row.reason
        )
    chosen = sa.select(assignment).where(
        in_stage(assignment, key), among(assignment.c.assignment_id, wanted)
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
    same_place = sa.select(run_attempt).where(
        in_stage(run_attempt, key),
        among(run_attempt.c.assignment_id, {result.assignment_id for result in results}),
    )
    found = list(await connection.execute(same_place))
    sequences: dict[str, list[int]] = defaultdict(list)
    for result in results:
        sequences[result.producer].append(result.sequence)
    for producer, own in sequences.items():
        same_sequence = sa.select(run_attempt).where(
            run_attempt.c.producer == producer, among_numbers(run_attempt.c.sequence, own)
        )
        found += list(await connection.execute(same_sequence))
    return [
        KnownAttempt(
            place=(row.assignment_id, row.run, row.attempt),
            producer=row.producer,
            sequence=row.sequence,
            content_hash=row.content_hash,
            state=row.state,
        )
        for row in found
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
    """Store how runs stand after their results were judged; most stand alike."""
    alike: dict[tuple[int, RunState, int, str], list[str]] = defaultdict(list)
    for own_id, number, one in changed:
        alike[number, one.state, one.num_failed, one.reason].append(own_id)
    for (number, state, num_failed, reason), ids in alike.items():
        statement = (
            sa.update(run)
            .where(in_stage(run, key), among(run.c.assignment_id, ids), run.c.run == number)
            .values(state=state, num_failed=num_failed, reason=reason)
        )
        await connection.execute(statement)


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


async def commonest_failure(connection: AsyncConnection, key: StageKey) -> str:
    """Why most runs of the stage were given up; empty when none was."""
    counted = (
        sa.select(run.c.reason)
        .where(in_stage(run, key), run.c.state == RunState.GIVEN_UP, run.c.reason != "")
        .group_by(run.c.reason)
        .order_by(sa.func.count().desc(), run.c.reason)
        .limit(1)
    )
    return (await connection.execute(counted)).scalar() or ""


async def update_open_counts(
    connection: AsyncConnection, key: StageKey, counts: Mapping[str, int]
) -> None:
    """Store how many runs of each assignment are still open."""
    alike: dict[int, list[str]] = defaultdict(list)
    for own_id, count in counts.items():
        alike[count].append(own_id)
    for count, ids in alike.items():
        statement = (
            sa.update(assignment)
            .where(in_stage(assignment, key), among(assignment.c.assignment_id, ids))
            .values(num_open_runs=count)
        )
        await connection.execute(statement)


async def oldest_open_work(
    connection: AsyncConnection, key: StageKey, kind: AssignmentKind
) -> OpenWork | None:
    """The earliest explore step (of an evaluation: version) with open assignments, if any."""
    is_open = one_of(assignment.c.state, OPEN_ASSIGNMENT)
    of_kind = sa.and_(in_stage(assignment, key), assignment.c.kind == kind)
    oldest = sa.select(sa.func.min(assignment.c.explore_step)).where(of_kind, is_open)
    explore_step = (await connection.execute(oldest)).scalar()
    count = sa.func.count()
    statement = sa.select(
        count.filter(is_open).label("num_open"),
        count.filter(assignment.c.state == AssignmentState.PENDING).label("num_pending"),
        count.label("num_all"),
        sa.func.array_agg(sa.distinct(assignment.c.leased_by))
        .filter(assignment.c.state == AssignmentState.LEASED)
        .label("holders"),
        sa.func.max(assignment.c.required_version).label("required_version"),
    ).where(of_kind, assignment.c.explore_step == explore_step)
    if explore_step is None:
        return None
    row = (await connection.execute(statement)).one()
    return OpenWork(
        explore_step=explore_step,
        num_open=row.num_open,
        num_pending=row.num_pending,
        num_all=row.num_all,
        holders=tuple(str(holder) for holder in row.holders or ()),
        required_version=row.required_version,
    )
