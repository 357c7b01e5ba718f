"""Statements that cut stragglers, and that reopen lost work of a reopened stage."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from services.buffer.domain.admission import CancelledStraggler, ExploreStepTasks
from services.buffer.domain.stage import (
    AssignmentKind,
    AssignmentState,
    EvaluationState,
    ExperienceState,
    RunState,
    ScopeState,
)
from services.buffer.store.database import (
    SCOPES_TOPIC,
    columns_of,
    count_rows,
    id_in,
    in_stage,
    insert_rows,
    key_columns,
    notify,
    of_stage,
    one_of,
    value_of,
)
from services.buffer.store.pipeline import update_scopes
from services.buffer.store.schema import (
    NOW,
    assignment,
    evaluation,
    experience,
    pipeline_scope,
    run,
)
from trinity.runtime.sql import Connection
from trinity.types import StageKey

ASSIGNMENT, EXPERIENCE = assignment.c, experience.c
ENDED = (AssignmentState.CLOSED, AssignmentState.GIVEN_UP)
UNFINISHED = (ExperienceState.RAW, ExperienceState.AWAITING)


async def tasks_by_step(
    connection: Connection, key: StageKey, *, only_open: bool
) -> list[ExploreStepTasks]:
    """Counts the tasks of each explore step; `only_open` leaves out steps without open tasks."""
    count = sa.func.count()
    num_open = count.filter(ASSIGNMENT.is_open)
    statement = (
        sa.select(
            ASSIGNMENT.explore_step,
            count.label("num_drawn"),
            num_open.label("num_open"),
            count.filter(one_of(ASSIGNMENT.state, ENDED)).label("num_ended"),
        )
        .where(
            in_stage(assignment, key),
            ASSIGNMENT.kind == AssignmentKind.TRAIN,
            ASSIGNMENT.refill_round == 0,
        )
        .group_by(ASSIGNMENT.explore_step)
        .order_by(ASSIGNMENT.explore_step)
    )
    if only_open:
        open_steps = sa.select(ASSIGNMENT.explore_step).where(
            in_stage(assignment, key), ASSIGNMENT.kind == AssignmentKind.TRAIN, ASSIGNMENT.is_open
        )
        statement = statement.where(ASSIGNMENT.explore_step.in_(open_steps))
    return [value_of(ExploreStepTasks, row) for row in await connection.fetch(statement)]


async def seconds_since_ended(
    connection: Connection, key: StageKey, explore_step: int, number: int
) -> float | None:
    """Returns the seconds since `number` tasks of a step had ended; None if unknown.

    A task that closed has a scope since then. A task that was given up has no time and counts as
    the first to end: None means that such tasks alone reach the number.
    """
    own = _of_step(key, explore_step)
    closed = sa.and_(own, ASSIGNMENT.state == AssignmentState.CLOSED)
    is_given_up = ASSIGNMENT.state == AssignmentState.GIVEN_UP
    num_given_up = await count_rows(connection, assignment, own, is_given_up)
    place = min(number - num_given_up, await count_rows(connection, assignment, closed))
    if place < 1:
        return None
    scope = pipeline_scope.c
    statement = (
        sa.select(sa.extract("epoch", NOW - scope.opened_at))
        .where(
            in_stage(pipeline_scope, key),
            scope.assignment_id.in_(sa.select(ASSIGNMENT.assignment_id).where(closed)),
        )
        .order_by(scope.opened_at)
        .offset(place - 1)
        .limit(1)
    )
    return float(await connection.fetch_value(statement))


def _of_step(key: StageKey, explore_step: int) -> sa.ColumnElement[bool]:
    """Condition: tasks of an explore step, without refills."""
    return sa.and_(
        in_stage(assignment, key),
        ASSIGNMENT.kind == AssignmentKind.TRAIN,
        ASSIGNMENT.explore_step == explore_step,
        ASSIGNMENT.refill_round == 0,
    )


async def cut_open_tasks(
    connection: Connection, key: StageKey, explore_step: int, reason: str
) -> list[CancelledStraggler]:
    """Cuts the open tasks of a step, leased ones too; returns them."""
    statement = (
        sa.update(assignment)
        .where(_of_step(key, explore_step), ASSIGNMENT.is_open)
        .values(state=AssignmentState.CUT, reason=reason, lease_token=None, lease_until=None)
        .returning(ASSIGNMENT.assignment_id, ASSIGNMENT.explore_step, ASSIGNMENT.position)
    )
    return [value_of(CancelledStraggler, row) for row in await connection.fetch(statement)]


async def with_ended_runs(
    connection: Connection, key: StageKey, cut: Sequence[CancelledStraggler]
) -> list[str]:
    """Returns the ids of those tasks that have a won run."""
    statement = (
        sa.select(run.c.assignment_id)
        .distinct()
        .where(
            in_stage(run, key),
            id_in(run.c.assignment_id, [task.assignment_id for task in cut]),
            run.c.state == RunState.WON,
        )
    )
    return sorted(await connection.fetch_column(statement))


async def count_kept_runs(connection: Connection, key: StageKey) -> int:
    """Counts the won runs of cut tasks."""
    cut = sa.select(ASSIGNMENT.assignment_id).where(
        in_stage(assignment, key), ASSIGNMENT.state == AssignmentState.CUT
    )
    is_won = run.c.state == RunState.WON
    return await count_rows(
        connection, run, in_stage(run, key), is_won, run.c.assignment_id.in_(cut)
    )


async def drop(
    connection: Connection, key: StageKey, cut: Sequence[CancelledStraggler], reason: str
) -> None:
    """Filters the samples of cut tasks, so that they are not trained on.

    The losses are stored as metrics of a finished scope, which the next batch reports.
    """
    ids = [task.assignment_id for task in cut]
    open_runs = await _open_runs(connection, key, ids)
    lengths = await _filter_samples(connection, key, ids, reason)
    scopes = [
        {
            **key_columns(key),
            **columns_of(row),
            "state": ScopeState.DONE,
            "error": reason,
            "metrics": _figures(open_runs.get(row.assignment_id, 0), lengths[row.assignment_id]),
        }
        for row in cut
    ]
    await insert_rows(connection, pipeline_scope, scopes)


async def _open_runs(connection: Connection, key: StageKey, ids: list[str]) -> dict[str, int]:
    statement = (
        sa.select(run.c.assignment_id, sa.func.count().label("number"))
        .where(in_stage(run, key), id_in(run.c.assignment_id, ids), run.c.state == RunState.OPEN)
        .group_by(run.c.assignment_id)
    )
    return {row.assignment_id: row.number for row in await connection.fetch(statement)}


async def _filter_samples(
    connection: Connection, key: StageKey, ids: list[str], reason: str
) -> dict[str, list[int]]:
    """Filters the unfinished samples of these tasks; returns their response lengths."""
    statement = (
        sa.update(experience)
        .where(
            of_stage(experience, key),
            id_in(EXPERIENCE.assignment_id, ids),
            one_of(EXPERIENCE.state, UNFINISHED),
        )
        .values(state=ExperienceState.FILTERED, reason=reason)
        .returning(EXPERIENCE.assignment_id, EXPERIENCE.response_length)
    )
    lengths: dict[str, list[int]] = defaultdict(list)
    for row in await connection.fetch(statement):
        lengths[row.assignment_id].append(row.response_length)
    return lengths


def _figures(num_open_runs: int, lengths: list[int]) -> dict[str, float]:
    """Builds the metrics of a cut task; lengths are known only of runs that have ended."""
    figures: dict[str, float] = {
        "over_rollout/cut_task_count": 1.0,
        "over_rollout/cut_run_count": float(num_open_runs),
        "over_rollout/cut_sample_count": float(len(lengths)),
    }
    if lengths:
        figures["over_rollout/cut_response_length"] = sum(lengths) / len(lengths)
    return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWork:
    """Training work from some explore step on: its size, and the groups that gave no rows."""

    num_drawn: int
    failed_groups: Sequence[str]
    """Groups whose runs succeeded but whose advantages could not be computed, in order of place."""
    given_up: Sequence[str]


async def find_lost_work(connection: Connection, key: StageKey, first_step: int) -> LostWork:
    """Finds the groups that explore steps from `first_step` on have lost."""
    dead = sa.select(pipeline_scope.c.assignment_id).where(
        in_stage(pipeline_scope, key), pipeline_scope.c.state == ScopeState.DEAD
    )
    failed_groups = set(await connection.fetch_column(dead))
    is_train = ASSIGNMENT.kind == AssignmentKind.TRAIN
    drawn = (
        sa.select(ASSIGNMENT.assignment_id, ASSIGNMENT.state)
        .where(in_stage(assignment, key), is_train, ASSIGNMENT.explore_step >= first_step)
        .order_by(ASSIGNMENT.explore_step, ASSIGNMENT.position)
    )
    rows = await connection.fetch(drawn)
    return LostWork(
        num_drawn=len(rows),
        failed_groups=[row.assignment_id for row in rows if row.assignment_id in failed_groups],
        given_up=[row.assignment_id for row in rows if row.state == AssignmentState.GIVEN_UP],
    )


async def find_cancelled(connection: Connection, key: StageKey, kind: AssignmentKind) -> list[str]:
    """Returns the cancelled assignments of a kind."""
    statement = sa.select(ASSIGNMENT.assignment_id).where(
        in_stage(assignment, key),
        ASSIGNMENT.kind == kind,
        ASSIGNMENT.state == AssignmentState.CANCELLED,
    )
    return await connection.fetch_column(statement)


async def reopen_evaluations(connection: Connection, key: StageKey) -> list[str]:
    """Reopens cancelled evaluations; returns their assignments that were cancelled or given up."""
    statement = (
        sa.update(evaluation)
        .where(in_stage(evaluation, key), evaluation.c.state == EvaluationState.CANCELLED)
        .values(state=EvaluationState.OPEN, opened_at=NOW, done_at=None)
        .returning(evaluation.c.version, evaluation.c.taskset)
    )
    reopened = {(row.version, row.taskset) for row in await connection.fetch(statement)}
    if not reopened:
        return []
    columns = (ASSIGNMENT.assignment_id, ASSIGNMENT.explore_step, ASSIGNMENT.taskset)
    tasks = sa.select(*columns).where(
        in_stage(assignment, key),
        ASSIGNMENT.kind == AssignmentKind.EVAL,
        one_of(ASSIGNMENT.state, [AssignmentState.CANCELLED, AssignmentState.GIVEN_UP]),
    )
    rows = await connection.fetch(tasks)
    return [row.assignment_id for row in rows if (row.explore_step, row.taskset) in reopened]


async def reopen_assignments(connection: Connection, key: StageKey, ids: Sequence[str]) -> None:
    """Makes assignments pending again; won runs stay, failures of other runs are cleared."""
    await connection.execute(
        sa.update(run)
        .where(in_stage(run, key), id_in(run.c.assignment_id, ids), run.c.state != RunState.WON)
        .values(state=RunState.OPEN, num_failed=0, reason="")
    )
    num_open = (
        sa.select(sa.func.count())
        .select_from(run)
        .where(
            in_stage(run, key),
            run.c.assignment_id == ASSIGNMENT.assignment_id,
            run.c.state == RunState.OPEN,
        )
        .scalar_subquery()
    )
    await connection.execute(
        sa.update(assignment)
        .where(in_stage(assignment, key), id_in(ASSIGNMENT.assignment_id, ids))
        .values(
            state=AssignmentState.PENDING,
            reason="",
            lease_token=None,
            lease_until=None,
            num_open_runs=num_open,
        )
    )


async def reopen_left_out_scopes(connection: Connection, key: StageKey, ids: Sequence[str]) -> None:
    """Lets the pipeline retry groups that it had left out."""
    await update_scopes(connection, key, ids, state=ScopeState.OPEN, attempts=0, error="")
    await connection.execute(
        sa.update(experience)
        .where(
            in_stage(experience, key),
            id_in(EXPERIENCE.assignment_id, ids),
            EXPERIENCE.state == ExperienceState.FILTERED,
        )
        .values(state=ExperienceState.RAW, reason="")
    )
    await notify(connection, SCOPES_TOPIC)


async def reset_refills(connection: Connection, key: StageKey, explore_step: int) -> None:
    """Resets the refill rounds of an explore step."""
    await connection.execute(
        sa.update(assignment)
        .where(
            in_stage(assignment, key),
            ASSIGNMENT.kind == AssignmentKind.TRAIN,
            ASSIGNMENT.explore_step == explore_step,
        )
        .values(refill_round=0)
    )
