"""Statements on assignments."""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from services.buffer.domain.stage import AssignmentKind, AssignmentState, RunState
from services.buffer.store.columns import STAGE_KEY
from services.buffer.store.database import (
    columns_of,
    id_in,
    in_stage,
    insert_rows,
    key_columns,
    of_stage,
    one_of,
    stage_params,
)
from services.buffer.store.schema import assignment, run
from trinity.runtime.sql import Connection
from trinity.runtime.uuids import name_uuid
from trinity.types import StageKey

ASSIGNMENT_NAMESPACE = uuid.UUID("b1f0a1c2-54f7-5f2e-8a53-0c0f8f2a7e11")
_RUN = (
    sa.func.generate_series(sa.literal(0, sa.BigInteger), assignment.c.repeat_times - 1)
    .table_valued("number", name="one")
    .render_derived()
)
_INSERT_RUNS = sa.insert(run).from_select(
    [*STAGE_KEY, "assignment_id", "run", "state"],
    sa.select(
        *(assignment.c[name] for name in (*STAGE_KEY, "assignment_id")),
        _RUN.c.number,
        sa.literal(RunState.OPEN.value),
    )
    .join_from(assignment, _RUN, sa.true())
    .where(of_stage(assignment), id_in(assignment.c.assignment_id)),
)
_END = (
    sa.update(assignment)
    .where(of_stage(assignment), id_in(assignment.c.assignment_id))
    .values(
        state=sa.bindparam("new_state"),
        reason=sa.bindparam("new_reason"),
        lease_token=None,
        lease_until=None,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAssignment:
    """An assignment to insert: one draw of one task."""

    kind: AssignmentKind
    taskset: str
    task_index: int
    explore_step: int
    position: int
    refill_round: int
    required_version: int
    repeat_times: int
    awaits_feedback: bool = False
    """True if the selector that drew it learns from its rewards."""


def assignment_id(key: StageKey, kind: AssignmentKind, explore_step: int, position: int) -> str:
    """Returns the id of a draw; the same draw always gets the same id."""
    name = f"{key.tenant}/{key.experiment_id}/{key.stage}/{kind}/{explore_step}/{position}"
    return name_uuid(ASSIGNMENT_NAMESPACE, name)


async def task_at(
    connection: Connection, key: StageKey, explore_step: int, position: int
) -> tuple[str, int]:
    """Returns the taskset and the row of a task that was trained on."""
    own = assignment_id(key, AssignmentKind.TRAIN, explore_step, position)
    statement = sa.select(assignment.c.taskset, assignment.c.task_index)
    row = await connection.fetch_one(
        statement.where(in_stage(assignment, key), assignment.c.assignment_id == own)
    )
    return row.taskset, row.task_index


async def insert_assignments(
    connection: Connection, key: StageKey, new: Sequence[NewAssignment]
) -> None:
    """Inserts assignments with all their runs."""
    rows = [
        {
            **key_columns(key),
            "assignment_id": assignment_id(key, draw.kind, draw.explore_step, draw.position),
            **columns_of(draw),
            "num_open_runs": draw.repeat_times,
            "state": AssignmentState.PENDING,
        }
        for draw in new
    ]
    await insert_rows(connection, assignment, rows)
    ids = [row["assignment_id"] for row in rows]
    await connection.execute(_INSERT_RUNS, stage_params(key, ids=ids))


async def end_assignments(
    connection: Connection, key: StageKey, ids: Sequence[str], state: AssignmentState, reason: str
) -> None:
    """Moves assignments to a final state."""
    if ids:
        values = stage_params(key, ids=ids, new_state=state, new_reason=reason)
        await connection.execute(_END, values)


async def cancel_open(
    connection: Connection, key: StageKey, reason: str, kinds: Iterable[AssignmentKind]
) -> int:
    """Cancels all open assignments of these kinds, leased ones too; returns their number."""
    statement = (
        sa.update(assignment)
        .where(in_stage(assignment, key), assignment.c.is_open, one_of(assignment.c.kind, kinds))
        .values(state=AssignmentState.CANCELLED, reason=reason, lease_token=None, lease_until=None)
    )
    return len(await connection.fetch(statement.returning(assignment.c.stage)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refills:
    """Refills of an explore step so far."""

    num_rounds: int
    next_position: int
    num_tasks: int
    """Tasks added by refills, over all rounds."""


async def count_refills(connection: Connection, key: StageKey, explore_step: int) -> Refills:
    """Counts the refills of an explore step, and finds the position after its last assignment."""
    statement = sa.select(
        sa.func.coalesce(sa.func.max(assignment.c.refill_round), 0).label("rounds"),
        sa.func.coalesce(sa.func.max(assignment.c.position) + 1, 0).label("next_position"),
        sa.func.count().filter(assignment.c.refill_round > 0).label("num_tasks"),
    ).where(
        in_stage(assignment, key),
        assignment.c.kind == AssignmentKind.TRAIN,
        assignment.c.explore_step == explore_step,
    )
    row = await connection.fetch_one(statement)
    return Refills(num_rounds=row.rounds, next_position=row.next_position, num_tasks=row.num_tasks)


async def first_explore_step(connection: Connection, key: StageKey, ids: Sequence[str]) -> int:
    """Returns the earliest explore step of these assignments."""
    statement = sa.select(sa.func.min(assignment.c.explore_step)).where(
        of_stage(assignment, key), id_in(assignment.c.assignment_id, ids)
    )
    return int(await connection.fetch_value(statement))


async def count_open(connection: Connection, key: StageKey) -> dict[AssignmentState, int]:
    """Counts the open assignments of a stage by state."""
    statement = (
        sa.select(assignment.c.state, sa.func.count())
        .where(in_stage(assignment, key), assignment.c.is_open)
        .group_by(assignment.c.state)
    )
    rows = await connection.fetch(statement)
    return {AssignmentState(state): number for state, number in rows}
