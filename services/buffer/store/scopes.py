"""Statements on scopes, the units of work of the pipeline."""

from collections.abc import Sequence
from functools import lru_cache
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
    among_given,
    decode_numbers,
    given,
    in_given_stage,
    key_from_row,
    notify,
    of_given_stage,
    one_of,
)
from services.buffer.store.prepared import execute, fetch, fetch_column
from services.buffer.store.tables import NOW, STAGE_KEY, assignment, pipeline_scope, stage
from trinity.types import StageKey

Place = tuple[int, int]
C = pipeline_scope.c
IS_FREE = sa.or_(
    C.state == ScopeState.OPEN, sa.and_(C.state == ScopeState.CLAIMED, C.claimed_until < NOW)
)


A = assignment.c
_COPIED = (*(A[name] for name in STAGE_KEY), A.assignment_id, A.explore_step, A.position)
_OPEN = sa.insert(pipeline_scope).from_select(
    [*(column.name for column in _COPIED), "state"],
    sa.select(*_COPIED, sa.literal(ScopeState.OPEN.value))
    .where(of_given_stage(assignment), among_given(A.assignment_id))
    .order_by(A.explore_step, A.position),
)


async def open_scopes(
    connection: AsyncConnection, key: StageKey, assignment_ids: Sequence[str]
) -> None:
    """Opens scopes for complete groups, so that the pipeline processes them."""
    if not assignment_ids:
        return
    await execute(connection, _OPEN, given(key, ids=assignment_ids))
    await notify(connection, SCOPES_TOPIC)


_WAITING_SINCE = (
    sa.select(sa.func.min(C.opened_at))
    .where(*(C[name] == stage.c[name] for name in STAGE_KEY))
    .where(one_of(C.state, OPEN_SCOPE), IS_FREE)
    .scalar_subquery()
)
_WITH_WORK: sa.Select[Any] = sa.select(
    *(stage.c[name] for name in STAGE_KEY), _WAITING_SINCE.label("since")
).where(stage.c.state == StageState.OPEN)


async def stages_with_work(connection: AsyncConnection) -> list[StageKey]:
    """Returns open stages with free scopes, the longest waiting first."""
    found = [row for row in await fetch(connection, _WITH_WORK) if row.since is not None]
    return [key_from_row(row) for row in sorted(found, key=lambda row: row.since)]


_UNTIL_CLAIMS_END = sa.select(sa.extract("epoch", sa.func.min(C.claimed_until) - NOW)).where(
    one_of(C.state, OPEN_SCOPE), C.state == ScopeState.CLAIMED, C.claimed_until > NOW
)


async def seconds_until_claims_end(connection: AsyncConnection) -> float | None:
    """Returns the seconds until the next claim of any worker expires; None without one."""
    seconds = (await fetch_column(connection, _UNTIL_CLAIMS_END))[0]
    return None if seconds is None else float(seconds)


_UNFINISHED = sa.select(
    sa.func.min(C.explore_step).label("first_step"), sa.func.count().label("number")
).where(in_given_stage(pipeline_scope), one_of(C.state, UNFINISHED_SCOPE))


async def count_unfinished_scopes(
    connection: AsyncConnection, key: StageKey
) -> tuple[int, int] | None:
    """Returns the first explore step with unfinished scopes and the number of all unfinished ones.

    None if there are none.
    """
    (row,) = await fetch(connection, _UNFINISHED, given(key))
    return (row.first_step, row.number) if row.number else None


@lru_cache
def _take_figures(is_bounded: bool) -> sa.Update:
    own = [in_given_stage(pipeline_scope), one_of(C.state, [ScopeState.DONE])]
    if is_bounded:
        last = (sa.bindparam(name, type_=sa.BigInteger) for name in ("last_step", "last_position"))
        own.append(sa.tuple_(C.explore_step, C.position) <= sa.tuple_(*last))
    return (
        sa.update(pipeline_scope)
        .where(*own, C.batched_step.is_(None))
        .values(batched_step=sa.bindparam("taken_by", type_=C.batched_step.type))
        .returning(C.metrics)
    )


async def take_figures(
    connection: AsyncConnection, key: StageKey, step: int, up_to: Place | None
) -> list[dict[str, float]]:
    """Takes the metrics of groups that were finished since the last batch, for batch `step`.

    With `up_to`, those of later groups stay for a later batch.
    """
    bound = {} if up_to is None else {"last_step": up_to[0], "last_position": up_to[1]}
    values = given(key, taken_by=step, **bound)
    found = await fetch_column(connection, _take_figures(up_to is not None), values)
    return [decode_numbers(metrics) for metrics in found]
