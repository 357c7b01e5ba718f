"""Statements on stored experiences of a source stage that another stage trains on."""

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.domain.states import ExperienceState
from services.buffer.store.database import in_stage, one_of
from services.buffer.store.ready_rows import ReadyRow, rows_of
from services.buffer.store.retention import retired_segments
from services.buffer.store.tables import batch_item, experience
from trinity.types import StageKey

E = experience.c
TAKEN = (ExperienceState.READY, ExperienceState.BATCHED)
"""States of experiences that passed the pipeline, trained or not. A batched one that a user
excluded has a reason."""


async def least_used(connection: AsyncConnection, stage: Stage, count: int) -> list[ReadyRow]:
    """Returns the rows of the source that this stage has trained least often, in order."""
    uses = (
        sa.select(batch_item.c.experience_id, sa.func.count().label("num"))
        .where(in_stage(batch_item, stage.key), batch_item.c.line == stage.line)
        .group_by(batch_item.c.experience_id)
        .subquery()
    )
    num_uses = sa.func.coalesce(uses.c.num, 0)
    retired = await retired_segments(connection, stage.samples_key)
    statement = (
        sa.select(E.experience_id)
        .join_from(experience, uses, uses.c.experience_id == E.experience_id, isouter=True)
        .where(_is_taken(stage.samples_key), E.segment_id.not_in(retired))
        .order_by(num_uses, E.explore_step, E.position, E.run, E.step, E.suffix)
        .limit(count)
    )
    ids = list((await connection.execute(statement)).scalars())
    return await rows_of(connection, stage.samples_key, ids)


async def count_taken(connection: AsyncConnection, key: StageKey) -> tuple[int, int]:
    """Counts the rows of a source with contents, and those in retired segments."""
    retired = await retired_segments(connection, key)
    statement = (
        sa.select(E.segment_id, sa.func.count()).where(_is_taken(key)).group_by(E.segment_id)
    )
    numbers = (await connection.execute(statement)).all()
    num_gone = sum(number for segment_id, number in numbers if segment_id in retired)
    return sum(number for _, number in numbers) - num_gone, num_gone


async def segments_taken(connection: AsyncConnection, key: StageKey) -> Iterable[int]:
    """Returns the segments with rows that another stage may train on."""
    statement = sa.select(E.segment_id).distinct().where(_is_taken(key))
    return (await connection.execute(statement)).scalars()


def _is_taken(key: StageKey) -> sa.ColumnElement[bool]:
    return sa.and_(in_stage(experience, key), one_of(E.state, TAKEN), E.reason == "")
