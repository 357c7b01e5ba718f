"""Statements on experiences that one stage has stored and another one trains on."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.store.database import in_stage
from services.buffer.store.ready_rows import ReadyRow, is_ready, rows_of
from services.buffer.store.tables import batch_item, experience


async def least_used(connection: AsyncConnection, stage: Stage, count: int) -> list[ReadyRow]:
    """Of the source's rows those that this stage has trained least often, in their order."""
    c = experience.c
    uses = (
        sa.select(batch_item.c.experience_id, sa.func.count().label("num"))
        .where(in_stage(batch_item, stage.key), batch_item.c.line == stage.line)
        .group_by(batch_item.c.experience_id)
        .subquery()
    )
    num_uses = sa.func.coalesce(uses.c.num, 0)
    statement = (
        sa.select(c.experience_id)
        .join_from(experience, uses, uses.c.experience_id == c.experience_id, isouter=True)
        .where(is_ready(stage.samples_key, None))
        .order_by(num_uses, c.explore_step, c.position, c.run, c.step, c.suffix)
        .limit(count)
    )
    ids = list((await connection.execute(statement)).scalars())
    return await rows_of(connection, stage.samples_key, ids)
