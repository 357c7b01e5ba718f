"""Statements on assignments, and their leases to explorers with their tasks."""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from services.buffer.domain.stage import (
    AssignmentKind,
    AssignmentState,
    EvaluationState,
    RunState,
    Stage,
)
from services.buffer.store.database import (
    UUIDS,
    columns_of,
    id_in,
    in_stage,
    insert_rows,
    key_columns,
    of_stage,
    one_of,
    seconds_from_now,
    stage_params,
    value_of,
)
from services.buffer.store.schema import (
    NOW,
    STAGE_KEY,
    UUID,
    assignment,
    evaluation,
    run,
    stage_taskset,
    task,
    version,
)
from services.buffer.store.turns import have_turns
from trinity.runtime.rpc.answers import ANSWER_BYTES
from trinity.runtime.sql import Connection, Row
from trinity.runtime.uuids import name_uuid
from trinity.types import StageKey

ASSIGNMENT = assignment.c
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
NAMES_BYTES = 700
"""Most bytes of an assignment besides its task and its runs."""
RUN_BYTES = 3
"""Most bytes of the number of a run."""
_RECORDED = sa.select(version.c.version).where(in_stage(version)).scalar_subquery()
_GRANTED = (
    *("assignment_id", "kind", "explore_step", "position", "taskset", "task_index"),
    *("num_attempts", "lease_token", "required_version", "repeat_times", "numbers_calls"),
)
_IS_LEASED = sa.and_(
    in_stage(assignment), assignment.c.is_open, assignment.c.state == AssignmentState.LEASED
)
# As rows, which Postgres hashes; it would scan an array for each lease.
_HELD_TOKENS = sa.select(sa.func.unnest(sa.bindparam("held", type_=UUIDS)))
_FREE_LOST = (
    sa.update(assignment)
    .where(
        _IS_LEASED,
        assignment.c.leased_by == sa.bindparam("explorer_id", type_=UUID),
        assignment.c.lease_token.not_in(_HELD_TOKENS),
    )
    .values(state=AssignmentState.PENDING)
    .returning(assignment.c.stage)
)
_SECONDS_UNTIL_EXPIRY = sa.select(
    sa.extract("epoch", sa.func.min(assignment.c.lease_until) - NOW)
).where(_IS_LEASED, assignment.c.lease_until > NOW)
_OF_EVALUATIONS = sa.select(evaluation.c.version).where(
    in_stage(evaluation), evaluation.c.state == EvaluationState.OPEN
)
_OLDEST_OF_TRAINING = sa.select(sa.func.min(assignment.c.required_version)).where(
    in_stage(assignment), assignment.c.kind == AssignmentKind.TRAIN, assignment.c.is_open
)
_PINNED = sa.union(_OF_EVALUATIONS, _OLDEST_OF_TRAINING)
_ORDER = (
    ASSIGNMENT.required_version,
    sa.case((ASSIGNMENT.kind == AssignmentKind.TRAIN, 0), else_=1),
    ASSIGNMENT.explore_step,
    ASSIGNMENT.position,
)
"""Training precedes the evaluation of the same weights: the trainer works while they are
evaluated. An evaluation precedes training with newer weights: the engines still hold its own."""

_PLACES = [place.label(f"place_{i}") for i, place in enumerate(_ORDER)]

_MAY_BE_GRANTED = sa.or_(
    sa.and_(
        sa.bindparam("may_evaluate", type_=sa.Boolean),
        ASSIGNMENT.kind == AssignmentKind.EVAL,
        ASSIGNMENT.required_version == sa.any_(sa.func.array(_RECORDED)),
    ),
    sa.and_(
        ASSIGNMENT.kind == AssignmentKind.TRAIN,
        ASSIGNMENT.required_version <= sa.bindparam("published", type_=sa.BigInteger),
    ),
)
"""Work whose weights are published; an evaluation needs exactly its version."""
_FREE = (
    sa.select(
        ASSIGNMENT.assignment_id,
        ASSIGNMENT.taskset,
        ASSIGNMENT.task_index,
        ASSIGNMENT.repeat_times,
        *_PLACES,
    )
    .where(
        in_stage(assignment),
        ASSIGNMENT.is_open,
        sa.or_(ASSIGNMENT.state == AssignmentState.PENDING, ASSIGNMENT.lease_until < NOW),
        _MAY_BE_GRANTED,
    )
    .order_by(*_ORDER)
    .limit(sa.bindparam("max_assignments", type_=sa.Integer))
    .subquery("free")
)
_NEWEST_INCARNATION = (
    sa.select(sa.func.max(version.c.incarnation))
    .where(in_stage(version), version.c.version == ASSIGNMENT.required_version)
    .correlate(assignment)
    .scalar_subquery()
)
"""The incarnation that published the version an assignment needs; NULL before it is published."""
_OPEN_RUNS = (
    sa.select(run.c.run)
    .where(
        in_stage(run), run.c.assignment_id == ASSIGNMENT.assignment_id, run.c.state == RunState.OPEN
    )
    .order_by(run.c.run)
    .correlate(assignment)
    .scalar_subquery()
)


def _places_of(row: sa.FromClause) -> list[sa.ColumnElement[Any]]:
    return [row.c[place.name] for place in _PLACES]


def _task_of(row: sa.FromClause, value: sa.ColumnElement[Any]) -> sa.ScalarSelect[Any]:
    """Builds a lookup of `value` for the task that the assignment in `row` draws."""
    taskset_id = (
        sa.select(stage_taskset.c.taskset_id)
        .where(in_stage(stage_taskset), stage_taskset.c.name == row.c.taskset)
        .correlate(row)
        .scalar_subquery()
    )
    statement = sa.select(value).where(
        task.c.tenant == sa.bindparam("key_tenant"),
        task.c.taskset_id == taskset_id,
        task.c.index == row.c.task_index,
    )
    return statement.correlate(row).scalar_subquery()


_SIZED = sa.select(
    _FREE.c.assignment_id,
    sa.func.sum(
        _task_of(_FREE, sa.func.octet_length(task.c.body))
        + _FREE.c.repeat_times * RUN_BYTES
        + NAMES_BYTES
    )
    .over(order_by=_places_of(_FREE))
    .label("num_bytes"),
    sa.func.row_number().over(order_by=_places_of(_FREE)).label("number"),
).subquery("sized")

_CHOSEN = sa.select(_SIZED.c.assignment_id).where(
    sa.or_(_SIZED.c.num_bytes <= ANSWER_BYTES, _SIZED.c.number == 1)
)
"""As many as fit into one response, but at least one."""


_TAKE = (
    sa.update(assignment)
    .where(
        of_stage(assignment),
        ASSIGNMENT.assignment_id == sa.any_(sa.func.array(_CHOSEN.scalar_subquery())),
    )
    .values(
        state=AssignmentState.LEASED,
        lease_token=sa.func.gen_random_uuid(),
        num_attempts=ASSIGNMENT.num_attempts
        + sa.bindparam("attempts_a_lease", type_=sa.BigInteger),
        leased_by=sa.bindparam("explorer_id", type_=UUID),
        lease_until=seconds_from_now(sa.bindparam("lease_seconds", type_=sa.Float)),
    )
    .returning(
        *(ASSIGNMENT[name] for name in _GRANTED),
        _NEWEST_INCARNATION.label("incarnation"),
        sa.func.array(_OPEN_RUNS).label("open_runs"),
        _task_of(assignment, task.c.body).label("task_body"),
        *_PLACES,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGrant:
    """An assignment as it is leased."""

    assignment_id: str
    kind: AssignmentKind
    explore_step: int
    position: int
    taskset: str
    task_index: int
    task_json: str
    runs: tuple[int, ...]
    first_attempt: int
    lease_token: str
    required_version: int
    required_incarnation: int
    repeat_times: int
    numbers_calls: bool = False
    """True if seeds of calls over the address follow from the call's number."""
    has_turns: bool = False
    """True if turns of its runs are stored."""


async def take_leases(
    connection: Connection,
    stage: Stage,
    *,
    explorer_id: str,
    max_assignments: int,
    lease_seconds: float,
) -> list[LeaseGrant]:
    """Leases assignments that are pending or whose lease has expired, oldest weights first."""
    params = stage_params(
        stage.key,
        published=stage.published,
        may_evaluate=stage.published is not None or stage.finished_step is not None,
        max_assignments=max_assignments,
        attempts_a_lease=stage.attempts_per_lease,
        explorer_id=explorer_id,
        lease_seconds=lease_seconds,
    )
    rows = await connection.fetch(_TAKE, params)
    rows.sort(key=lambda row: (row.place_0, row.place_1, row.place_2, row.place_3))
    begun = set()
    if rows:
        ids = [row.assignment_id for row in rows]
        begun = set(await connection.fetch_column(have_turns(ids, stage.key)))
    return [_grant(stage, row, has_turns=row.assignment_id in begun) for row in rows]


def _grant(stage: Stage, row: Row, *, has_turns: bool) -> LeaseGrant:
    return value_of(
        LeaseGrant,
        row,
        kind=AssignmentKind(row.kind),
        task_json=row.task_body,
        runs=tuple(row.open_runs),
        first_attempt=row.num_attempts - stage.attempts_per_lease,
        required_incarnation=row.incarnation or stage.incarnation,
        has_turns=has_turns,
    )


async def renew_leases(
    connection: Connection,
    key: StageKey,
    explorer_id: str,
    tokens: dict[str, str],
    lease_seconds: float,
) -> set[str]:
    """Extends the leases held under these tokens; returns the ids of their assignments.

    Rows are locked in the same order as by commits of results, so that they cannot deadlock.
    """
    c = assignment.c
    held = sa.select(c.assignment_id).where(_held(key, explorer_id), _under_tokens(tokens))
    locked = held.order_by(c.assignment_id).with_for_update(key_share=True).correlate(None)
    statement = (
        sa.update(assignment)
        .where(
            in_stage(assignment, key),
            c.assignment_id == sa.any_(sa.func.array(locked.scalar_subquery())),
        )
        .values(lease_until=seconds_from_now(lease_seconds))
        .returning(assignment.c.assignment_id)
    )
    return set(await connection.fetch_column(statement))


async def release_leases(
    connection: Connection, key: StageKey, explorer_id: str, tokens: dict[str, str]
) -> int:
    """Makes leased work pending again; no tokens mean all that this explorer holds."""
    where = _held(key, explorer_id)
    if tokens:
        where = sa.and_(where, _under_tokens(tokens))
    return await _free(connection, where)


async def free_lost_leases(
    connection: Connection, key: StageKey, explorer_id: str, held: Iterable[str]
) -> int:
    """Makes work pending again whose lease never reached its explorer: its token is not held."""
    values = stage_params(key, explorer_id=explorer_id, held=list(held))
    return len(await connection.fetch(_FREE_LOST, values))


async def _free(connection: Connection, which: sa.ColumnElement[bool]) -> int:
    statement = sa.update(assignment).where(which).values(state=AssignmentState.PENDING)
    return len(await connection.fetch(statement.returning(assignment.c.stage)))


def _held(key: StageKey, explorer_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(
        in_stage(assignment, key),
        assignment.c.is_open,
        assignment.c.state == AssignmentState.LEASED,
        assignment.c.leased_by == explorer_id,
    )


def _under_tokens(tokens: dict[str, str]) -> sa.ColumnElement[bool]:
    ids, given_tokens = sa.cast(list(tokens), UUIDS), sa.cast(list(tokens.values()), UUIDS)
    pairs = sa.func.unnest(ids, given_tokens).table_valued("id", "token", name="held")
    named = pairs.render_derived()
    return sa.tuple_(assignment.c.assignment_id, assignment.c.lease_token).in_(
        sa.select(named.c.id, named.c.token)
    )


async def seconds_until_expiry(connection: Connection, key: StageKey) -> float | None:
    """Returns the seconds until the next lease expires; None without one that will.

    Leases that have already expired do not count: their work waits for weights, not for the clock.
    """
    seconds = await connection.fetch_value(_SECONDS_UNTIL_EXPIRY, stage_params(key))
    return None if seconds is None else float(seconds)


async def pinned_versions(connection: Connection, key: StageKey) -> list[int]:
    """Returns the versions needed by open evaluations and by the oldest open training work."""
    found = await connection.fetch_column(_PINNED, stage_params(key))
    return sorted(version for version in found if version is not None)
