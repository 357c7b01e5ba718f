"""Statements that hand work out: which assignments, to whom, and with what."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.domain.states import (
    OPEN_ASSIGNMENT,
    AssignmentKind,
    AssignmentState,
    RunState,
)
from services.buffer.store.database import among, among_numbers, in_stage, one_of
from services.buffer.store.tables import NOW, assignment, run, stage_taskset, task, version
from trinity.types import StageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """An assignment as it is handed out."""

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


def lease_end(seconds: float) -> sa.ColumnElement[object]:
    """So long from now, by the database's clock."""
    return NOW + sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def _may_be_granted(stage: Stage) -> sa.ColumnElement[bool]:
    """Work whose weights are published; an evaluation needs that very version."""
    recorded = sa.select(version.c.version).where(in_stage(version, stage.key))
    evaluations = sa.and_(
        assignment.c.kind == AssignmentKind.EVAL,
        assignment.c.required_version == sa.any_(sa.func.array(recorded.scalar_subquery())),
    )
    if stage.published is None:
        return evaluations if stage.finished_step is not None else sa.false()
    return sa.or_(
        evaluations,
        sa.and_(
            assignment.c.kind == AssignmentKind.TRAIN,
            assignment.c.required_version <= stage.published,
        ),
    )


def _newest_incarnation(key: StageKey) -> sa.ScalarSelect[int]:
    """That published the version which an assignment needs; none if nobody has yet."""
    newest = sa.select(sa.func.max(version.c.incarnation)).where(
        in_stage(version, key), version.c.version == assignment.c.required_version
    )
    return newest.correlate(assignment).scalar_subquery()


async def take_leases(
    connection: AsyncConnection,
    stage: Stage,
    *,
    explorer_id: str,
    max_assignments: int,
    lease_seconds: float,
) -> list[Grant]:
    """Lease what is pending or whose lease has run out, oldest weights first.

    Training goes before the evaluation of the same weights: the trainer works while they are
    measured. An evaluation goes before training with newer weights: the engines still hold its own.
    """
    c = assignment.c
    order = (
        c.required_version,
        sa.case((c.kind == AssignmentKind.TRAIN, 0), else_=1),
        c.explore_step,
        c.position,
    )
    chosen = (
        sa.select(c.assignment_id)
        .where(
            in_stage(assignment, stage.key),
            one_of(c.state, OPEN_ASSIGNMENT),
            sa.or_(c.state == AssignmentState.PENDING, c.lease_until < NOW),
            _may_be_granted(stage),
        )
        .order_by(*order)
        .limit(max_assignments)
    )
    taken = (
        sa.update(assignment)
        .where(
            in_stage(assignment, stage.key),
            c.assignment_id == sa.any_(sa.func.array(chosen.scalar_subquery())),
        )
        .values(
            state=AssignmentState.LEASED,
            lease_token=sa.func.gen_random_uuid(),
            num_attempts=c.num_attempts + stage.attempts_a_lease,
            leased_by=explorer_id,
            lease_until=lease_end(lease_seconds),
        )
        .returning(
            assignment,
            _newest_incarnation(stage.key).label("incarnation"),
            *(place.label(f"place_{i}") for i, place in enumerate(order)),
        )
    )
    rows = sorted(
        await connection.execute(taken),
        key=lambda row: (row.place_0, row.place_1, row.place_2, row.place_3),
    )
    return await _grants(connection, stage, rows) if rows else []


async def _grants(
    connection: AsyncConnection, stage: Stage, leased: Sequence[sa.Row[Any]]
) -> list[Grant]:
    """What an explorer needs to work on leased assignments."""
    runs = await _open_runs(connection, stage.key, [row.assignment_id for row in leased])
    bodies = await _task_bodies(connection, stage.key, leased)
    return [
        Grant(
            assignment_id=row.assignment_id,
            kind=AssignmentKind(row.kind),
            explore_step=row.explore_step,
            position=row.position,
            taskset=row.taskset,
            task_index=row.task_index,
            task_json=bodies[row.taskset, row.task_index],
            runs=tuple(runs[row.assignment_id]),
            first_attempt=row.num_attempts - stage.attempts_a_lease,
            lease_token=row.lease_token,
            required_version=row.required_version,
            required_incarnation=row.incarnation or stage.incarnation,
            repeat_times=row.repeat_times,
        )
        for row in leased
    ]


async def _open_runs(
    connection: AsyncConnection, key: StageKey, ids: Sequence[str]
) -> dict[str, list[int]]:
    statement = (
        sa.select(run.c.assignment_id, run.c.run)
        .where(in_stage(run, key), among(run.c.assignment_id, ids), run.c.state == RunState.OPEN)
        .order_by(run.c.run)
    )
    runs: dict[str, list[int]] = defaultdict(list)
    for row in await connection.execute(statement):
        runs[row.assignment_id].append(row.run)
    return runs


async def _task_bodies(
    connection: AsyncConnection, key: StageKey, leased: Sequence[sa.Row[Any]]
) -> dict[tuple[str, int], str]:
    """The tasks of these assignments, by the taskset's name and their index."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for row in leased:
        wanted[row.taskset].add(row.task_index)
    bodies = {}
    for name, indexes in wanted.items():
        own = sa.select(stage_taskset.c.taskset_id).where(
            in_stage(stage_taskset, key), stage_taskset.c.name == name
        )
        statement = sa.select(task.c.index.label("row_number"), task.c.body).where(
            task.c.tenant == key.tenant,
            task.c.taskset_id == own.scalar_subquery(),
            among_numbers(task.c.index, indexes),
        )
        for found in await connection.execute(statement):
            bodies[name, found.row_number] = found.body
    return bodies
