"""Statements on how a stage gets on: when steps were trained, and what came of the newest runs."""

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
    """When steps were trained."""

    age_seconds: float
    """Of the newest report; -1 before the first."""
    usual_seconds: float
    """Between two reports; 0 while there are too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What came of the runs of the newest explore steps."""

    num_runs: int
    num_lost: int
    """Runs that failed or were filtered."""
    reason: str
    """Why most of them were lost."""


async def pace(connection: AsyncConnection, stage: Stage) -> Pace:
    """How quickly steps are trained now, by whatever life of the trainer trained them last."""
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
    """Of what a life reported last: it trains its steps in order.

    There is an index by step and none by time; who trains many steps again passes over the others.
    """
    statement = (
        sa.select(sa.extract("epoch", NOW - R.reported_at))
        .where(in_stage(step_report, stage.key), R.line == stage.line, R.incarnation == incarnation)
        .order_by(R.step.desc())
        .limit(RECENT_REPORTS)
    )
    return [float(one) for one in (await connection.execute(statement)).scalars()]


async def _life_before(connection: AsyncConnection, stage: Stage, incarnation: int) -> int:
    """The newest of the earlier ones that reported something; 0 without any."""
    statement = sa.select(sa.func.max(R.incarnation)).where(
        in_stage(step_report, stage.key), R.line == stage.line, R.incarnation < incarnation
    )
    return (await connection.execute(statement)).scalar() or 0


async def losses(connection: AsyncConnection, stage: Stage) -> Losses:
    """What the runs of the newest explore steps gave, as far as they have ended."""
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
    """A reason for each run with filtered samples."""
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
