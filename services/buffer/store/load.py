"""The statement that tells how many rows of a stage are on their way to a batch."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.admission import Load
from services.buffer.domain.states import OPEN_ASSIGNMENT, AssignmentKind, ExperienceState
from services.buffer.store.database import in_stage, one_of
from services.buffer.store.experiences import state_count
from services.buffer.store.tables import assignment
from trinity.types import StageKey


async def current_load(connection: AsyncConnection, key: StageKey) -> Load:
    """Runs of open training assignments that have no end yet, and rows that are not batched."""
    open_runs = sa.select(sa.func.coalesce(sa.func.sum(assignment.c.num_open_runs), 0)).where(
        in_stage(assignment, key),
        assignment.c.kind == AssignmentKind.TRAIN,
        one_of(assignment.c.state, OPEN_ASSIGNMENT),
    )
    counts = sa.select(
        open_runs.scalar_subquery().label("open_runs"),
        state_count(key, ExperienceState.RAW).scalar_subquery().label("raw"),
        state_count(key, ExperienceState.AWAITING).scalar_subquery().label("awaiting"),
        state_count(key, ExperienceState.READY).scalar_subquery().label("ready"),
    )
    row = (await connection.execute(counts)).one()
    return Load(num_outstanding=int(row.open_runs) + row.raw + row.awaiting, num_ready=row.ready)
