"""The statement that finds the first group that may still give rows."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.states import UNFINISHED_SCOPE, AssignmentKind
from services.buffer.store.database import given, in_given_stage, one_of
from services.buffer.store.prepared import fetch
from services.buffer.store.tables import assignment, pipeline_scope
from trinity.types import StageKey

A, S = assignment.c, pipeline_scope.c
_IN_WORK = sa.and_(
    in_given_stage(assignment),
    A.kind == AssignmentKind.TRAIN,
    A.is_open,
)
_IN_PIPELINE = sa.and_(in_given_stage(pipeline_scope), one_of(S.state, UNFINISHED_SCOPE))


def _first(table: sa.Table, which: sa.ColumnElement[bool]) -> sa.Select[tuple[int, int]]:
    place = (table.c.explore_step, table.c.position)
    first = sa.select(*place).where(which).order_by(*place).limit(1).subquery()
    return sa.select(first)


_FIRST = sa.union_all(_first(assignment, _IN_WORK), _first(pipeline_scope, _IN_PIPELINE))
_BEYOND_ALL = sa.select(*(sa.literal(2**63 - 1, sa.BigInteger) for _ in range(2)))
_PLACES = sa.union_all(*_FIRST.selects, _BEYOND_ALL).subquery("places")
FIRST_PLACE = (
    sa.select(_PLACES.c.explore_step, _PLACES.c.position)
    .order_by(_PLACES.c.explore_step, _PLACES.c.position)
    .limit(1)
    .scalar_subquery()
)
"""The first unfinished place, as part of a statement on the stage; beyond all places if none."""


async def first_unfinished(connection: AsyncConnection, key: StageKey) -> tuple[int, int] | None:
    """Returns explore step and position of the first open or unprocessed training group."""
    rows = await fetch(connection, _FIRST, given(key))
    return min(((row.explore_step, row.position) for row in rows), default=None)
