"""Statements on held leases: the explorer that works on an assignment, and until when."""

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.states import AssignmentState
from services.buffer.store.arrays import UUIDS
from services.buffer.store.database import given, in_given_stage, in_stage
from services.buffer.store.grants import lease_end
from services.buffer.store.prepared import fetch, fetch_column
from services.buffer.store.tables import NOW, UUID, assignment
from trinity.types import StageKey


async def renew_leases(
    connection: AsyncConnection,
    key: StageKey,
    explorer_id: str,
    tokens: dict[str, str],
    lease_seconds: float,
) -> set[str]:
    """Extends the leases held under these tokens; returns the ids of their assignments.

    Rows are locked in the same order as by commits of results, so that they cannot deadlock.
    """
    c = assignment.c
    held = sa.select(c.assignment_id).where(_held(key, explorer_id), _under_tokens(tokens))
    locked = held.order_by(c.assignment_id).with_for_update(key_share=True).correlate(None)
    statement = (
        sa.update(assignment)
        .where(
            in_stage(assignment, key),
            c.assignment_id == sa.any_(sa.func.array(locked.scalar_subquery())),
        )
        .values(lease_until=lease_end(lease_seconds))
        .returning(assignment.c.assignment_id)
    )
    return set((await connection.execute(statement)).scalars())


async def release_leases(
    connection: AsyncConnection, key: StageKey, explorer_id: str, tokens: dict[str, str]
) -> int:
    """Makes leased work pending again; no tokens mean all that this explorer holds."""
    where = _held(key, explorer_id)
    if tokens:
        where = sa.and_(where, _under_tokens(tokens))
    return await _free(connection, where)


_IS_LEASED = sa.and_(
    in_given_stage(assignment),
    assignment.c.is_open,
    assignment.c.state == AssignmentState.LEASED,
)

# As rows, which Postgres hashes; it would scan an array for each lease.
_HELD_TOKENS = sa.select(sa.func.unnest(sa.bindparam("held", type_=UUIDS)))
_FREE_LOST = (
    sa.update(assignment)
    .where(
        _IS_LEASED,
        assignment.c.leased_by == sa.bindparam("explorer_id", type_=UUID),
        assignment.c.lease_token.not_in(_HELD_TOKENS),
    )
    .values(state=AssignmentState.PENDING)
    .returning(assignment.c.stage)
)


async def free_lost_leases(
    connection: AsyncConnection, key: StageKey, explorer_id: str, held: Iterable[str]
) -> int:
    """Makes work pending again whose lease never reached its explorer: its token is not held."""
    values = given(key, explorer_id=explorer_id, held=list(held))
    return len(await fetch(connection, _FREE_LOST, values))


async def _free(connection: AsyncConnection, which: sa.ColumnElement[bool]) -> int:
    statement = sa.update(assignment).where(which).values(state=AssignmentState.PENDING)
    return len((await connection.execute(statement.returning(assignment.c.stage))).all())


def _held(key: StageKey, explorer_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(
        in_stage(assignment, key),
        assignment.c.is_open,
        assignment.c.state == AssignmentState.LEASED,
        assignment.c.leased_by == explorer_id,
    )


def _under_tokens(tokens: dict[str, str]) -> sa.ColumnElement[bool]:
    ids, given_tokens = sa.cast(list(tokens), UUIDS), sa.cast(list(tokens.values()), UUIDS)
    pairs = sa.func.unnest(ids, given_tokens).table_valued("id", "token", name="held")
    named = pairs.render_derived()
    return sa.tuple_(assignment.c.assignment_id, assignment.c.lease_token).in_(
        sa.select(named.c.id, named.c.token)
    )


_SECONDS_UNTIL_EXPIRY = sa.select(
    sa.extract("epoch", sa.func.min(assignment.c.lease_until) - NOW)
).where(_IS_LEASED, assignment.c.lease_until > NOW)


async def seconds_until_expiry(connection: AsyncConnection, key: StageKey) -> float | None:
    """Returns the seconds until the next lease expires; None without one that will.

    Leases that have already expired do not count: their work waits for weights, not for the clock.
    """
    seconds = (await fetch_column(connection, _SECONDS_UNTIL_EXPIRY, given(key)))[0]
    return None if seconds is None else float(seconds)
