"""Statements on the progress of a stage: times of train steps, outcomes of the newest runs."""

import statistics
from dataclasses import dataclass
from itertools import pairwise

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.domain.states import (
    AssignmentKind,
    AssignmentState,
    ExperienceState,
    RunState,
)
from services.buffer.store.database import among, in_stage
from services.buffer.store.tables import NOW, assignment, experience, run, step_report
from trinity.types import StageKey

R = step_report.c
NEVER = -1.0
RECENT_REPORTS = 11
RECENT_EXPLORE_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The pace of training."""

    age_seconds: float
    """Seconds since the newest step report; -1 before the first."""
    usual_seconds: float
    """Median time between two reports; 0 while there are too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Lost runs of the newest explore steps."""

    num_runs: int
    num_lost: int
    """Runs that failed or were filtered."""
    reason: str
    """The most frequent reason."""


async def pace(connection: AsyncConnection, stage: Stage) -> Pace:
    """Measures the current pace of training, from the newest reports of any incarnation."""
    life = stage.incarnation
    ages = await _ages(connection, stage, life)
    while len(ages) < RECENT_REPORTS and (life := await _life_before(connection, stage, life)):
        ages += await _ages(connection, stage, life)
    ages = sorted(ages)[:RECENT_REPORTS]
    gaps = [older - newer for newer, older in pairwise(ages)]
    return Pace(
        age_seconds=max(ages[0], 0.0) if ages else NEVER,
        usual_seconds=statistics.median(gaps) if gaps else 0.0,
    )


async def _ages(connection: AsyncConnection, stage: Stage, incarnation: int) -> list[float]:
    """Returns the ages of an incarnation's newest reports; it trains its steps in order.

    The index is by step, not by time. Reading per incarnation skips older reports of the same steps
    when many are trained again.
    """
    statement = (
        sa.select(sa.extract("epoch", NOW - R.reported_at))
        .where(in_stage(step_report, stage.key), R.line == stage.line, R.incarnation == incarnation)
        .order_by(R.step.desc())
        .limit(RECENT_REPORTS)
    )
    return [float(age) for age in (await connection.execute(statement)).scalars()]


async def _life_before(connection: AsyncConnection, stage: Stage, incarnation: int) -> int:
    """Returns the newest earlier incarnation that has reports; 0 without any."""
    statement = sa.select(sa.func.max(R.incarnation)).where(
        in_stage(step_report, stage.key), R.line == stage.line, R.incarnation < incarnation
    )
    return (await connection.execute(statement)).scalar() or 0


async def losses(connection: AsyncConnection, stage: Stage) -> Losses:
    """Counts the lost runs of the newest explore steps, over assignments that have ended."""
    a = assignment.c
    ended = sa.select(a.assignment_id, a.repeat_times).where(
        in_stage(assignment, stage.key),
        a.kind == AssignmentKind.TRAIN,
        a.explore_step > stage.explore_step - RECENT_EXPLORE_STEPS,
        a.state.in_([AssignmentState.CLOSED, AssignmentState.GIVEN_UP]),
    )
    rows = (await connection.execute(ended)).all()
    ids = [row.assignment_id for row in rows]
    reasons = await _filtered(connection, stage.key, ids)
    reasons += await _given_up(connection, stage.key, ids)
    return Losses(
        num_runs=sum(row.repeat_times for row in rows),
        num_lost=len(reasons),
        reason=statistics.mode(reasons) if reasons else "",
    )


async def _filtered(connection: AsyncConnection, key: StageKey, ids: list[str]) -> list[str]:
    """Returns a reason for each run with filtered samples."""
    c = experience.c
    statement = (
        sa.select(sa.func.min(c.reason).label("reason"))
        .where(
            in_stage(experience, key),
            among(c.assignment_id, ids),
            c.state == ExperienceState.FILTERED,
        )
        .group_by(c.assignment_id, c.run)
    )
    return list((await connection.execute(statement)).scalars())


async def _given_up(connection: AsyncConnection, key: StageKey, ids: list[str]) -> list[str]:
    statement = sa.select(run.c.reason).where(
        in_stage(run, key), among(run.c.assignment_id, ids), run.c.state == RunState.GIVEN_UP
    )
    return list((await connection.execute(statement)).scalars())
