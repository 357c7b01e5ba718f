"""Statements that list stages and count their samples."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.states import ExperienceState
from services.buffer.store.database import in_stage, key_from_row
from services.buffer.store.tables import experience, stage
from trinity.types import StageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Samples that are in one state for one reason."""

    state: ExperienceState
    reason: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStage:
    """A stage without its plan, which may be unreadable for this version."""

    key: StageKey
    state: str
    trained_step: int
    recorded_step: int


async def stored_stages(
    connection: AsyncConnection, tenant: str, experiment_id: str
) -> Sequence[StoredStage]:
    """Returns stages in the order in which they were opened; empty names mean all."""
    statement = sa.select(stage).order_by(stage.c.opened_at)
    if tenant:
        statement = statement.where(stage.c.tenant == tenant)
    if experiment_id:
        statement = statement.where(stage.c.experiment_id == experiment_id)
    return [
        StoredStage(
            key=key_from_row(row),
            state=row.state,
            trained_step=row.trained_step,
            recorded_step=row.recorded_step,
        )
        for row in await connection.execute(statement)
    ]


async def count_by_reason(connection: AsyncConnection, key: StageKey) -> Sequence[Count]:
    """Counts samples by state and reason, highest count first."""
    c = experience.c
    number = sa.func.count()
    statement = (
        sa.select(c.state, c.reason, number.label("number"))
        .where(in_stage(experience, key))
        .group_by(c.state, c.reason)
        .order_by(number.desc(), c.state, c.reason)
    )
    return [
        Count(state=ExperienceState(row.state), reason=row.reason, number=row.number)
        for row in await connection.execute(statement)
    ]
