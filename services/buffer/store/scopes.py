"""Statements on scopes: what the pipeline works on at once."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.states import (
    OPEN_SCOPE,
    UNFINISHED_SCOPE,
    ScopeState,
    StageState,
)
from services.buffer.store.database import (
    SCOPES_TOPIC,
    among,
    decode_numbers,
    in_stage,
    key_from_row,
    notify,
    one_of,
)
from services.buffer.store.tables import NOW, STAGE_KEY, assignment, pipeline_scope, stage
from trinity.types import StageKey

Place = tuple[int, int]
C = pipeline_scope.c
IS_FREE = sa.or_(
    C.state == ScopeState.OPEN, sa.and_(C.state == ScopeState.CLAIMED, C.claimed_until < NOW)
)


async def open_scopes(
    connection: AsyncConnection, key: StageKey, assignment_ids: Sequence[str]
) -> None:
    """Let the pipeline work on groups that are complete."""
    if not assignment_ids:
        return
    a = assignment.c
    copied = [*(a[name] for name in STAGE_KEY), a.assignment_id, a.explore_step, a.position]
    closed = (
        sa.select(*copied, sa.literal(ScopeState.OPEN.value))
        .where(in_stage(assignment, key), among(a.assignment_id, assignment_ids))
        .order_by(a.explore_step, a.position)
    )
    names = [*(column.name for column in copied), "state"]
    await connection.execute(sa.insert(pipeline_scope).from_select(names, closed))
    await notify(connection, SCOPES_TOPIC)


async def stages_with_work(connection: AsyncConnection) -> list[StageKey]:
    """Open stages with scopes that nobody works on, the one that waits longest first."""
    waiting = (
        sa.select(sa.func.min(C.opened_at))
        .where(*(C[name] == stage.c[name] for name in STAGE_KEY))
        .where(one_of(C.state, OPEN_SCOPE), IS_FREE)
        .scalar_subquery()
    )
    columns: list[sa.ColumnElement[Any]] = [stage.c[name] for name in STAGE_KEY]
    columns.append(waiting.label("since"))
    statement = sa.select(*columns).where(stage.c.state == StageState.OPEN)
    found = [row for row in await connection.execute(statement) if row.since is not None]
    return [key_from_row(row) for row in sorted(found, key=lambda row: row.since)]


async def open_scope_places(connection: AsyncConnection, key: StageKey) -> list[Place]:
    """Places of the groups that the pipeline has not finished, earliest first."""
    statement = (
        sa.select(C.explore_step, C.position)
        .where(in_stage(pipeline_scope, key), one_of(C.state, UNFINISHED_SCOPE))
        .order_by(C.explore_step, C.position)
    )
    return [(row.explore_step, row.position) for row in await connection.execute(statement)]


async def take_figures(
    connection: AsyncConnection, key: StageKey, step: int, up_to: Place | None
) -> list[dict[str, float]]:
    """Figures of the groups shaped since the batch before, for the batch of `step`.

    With `up_to` those of groups that come later stay for a later batch.
    """
    own = [in_stage(pipeline_scope, key), one_of(C.state, [ScopeState.DONE])]
    if up_to is not None:
        own.append(sa.tuple_(C.explore_step, C.position) <= up_to)
    statement = (
        sa.update(pipeline_scope)
        .where(*own, C.batched_step.is_(None))
        .values(batched_step=step)
        .returning(C.metrics)
    )
    return [decode_numbers(one) for one in (await connection.execute(statement)).scalars()]
