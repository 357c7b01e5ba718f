"""The statement that counts the rows of a stage that are on their way to a batch."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.admission import Load
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import AssignmentKind, ExperienceState
from services.buffer.store.database import given, in_given_stage, one_of
from services.buffer.store.prepared import fetch_together
from services.buffer.store.tables import assignment, experience


def _count(state: ExperienceState) -> sa.ScalarSelect[int]:
    return (
        sa.select(sa.func.count())
        .select_from(experience)
        .where(in_given_stage(experience), one_of(experience.c.state, [state]))
        .scalar_subquery()
    )


_OPEN_RUNS = (
    sa.select(sa.func.coalesce(sa.func.sum(assignment.c.num_open_runs), 0))
    .where(
        in_given_stage(assignment),
        assignment.c.kind == AssignmentKind.TRAIN,
        assignment.c.is_open,
    )
    .scalar_subquery()
)

_COUNTS = sa.select(
    _OPEN_RUNS.label("open_runs"),
    _count(ExperienceState.RAW).label("raw"),
    _count(ExperienceState.AWAITING).label("awaiting"),
)
_READY = sa.select(_count(ExperienceState.READY).label("number"))


async def current_load(connection: AsyncConnection, stage: Stage) -> Load:
    """Counts the open runs of training assignments, and rows that are not batched yet.

    Without a trainer no ready row is ever batched, so ready rows do not count then.
    """
    key = given(stage.key)
    asked = [_COUNTS, _READY] if stage.plan.needs_training else [_COUNTS]
    [row], *ready = await fetch_together(connection, *((statement, key) for statement in asked))
    return Load(
        num_outstanding=int(row.open_runs) + row.raw + row.awaiting,
        num_ready=sum(rows[0].number for rows in ready),
    )
