"""Statements on scopes: what the pipeline works on at once."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.states import OPEN_SCOPE, ScopeState
from services.buffer.store.database import (
    SCOPES_TOPIC,
    among,
    in_stage,
    insert_rows,
    key_columns,
    key_from_row,
    notify,
    one_of,
)
from services.buffer.store.tables import NOW, STAGE_KEY, assignment, pipeline_scope
from trinity.types import StageKey

Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to work on a scope until it runs out or another claim takes its place."""

    key: StageKey
    assignment_id: str
    token: str
    attempts: int


async def open_scopes(
    connection: AsyncConnection, key: StageKey, assignment_ids: Sequence[str]
) -> None:
    """Let the pipeline work on groups that are complete."""
    if assignment_ids:
        rows = [
            {**key_columns(key), "assignment_id": one, "state": ScopeState.OPEN}
            for one in assignment_ids
        ]
        await insert_rows(connection, pipeline_scope, rows)
        await notify(connection, SCOPES_TOPIC)


async def claim_scopes(
    connection: AsyncConnection, *, limit: int, claim_seconds: float
) -> list[Claim]:
    """Take scopes that nobody works on; other workers pass over those taken."""
    token = str(uuid.uuid4())
    c = pipeline_scope.c
    is_free = sa.or_(
        c.state == ScopeState.OPEN,
        sa.and_(c.state == ScopeState.CLAIMED, c.claimed_until < NOW),
    )
    columns = [c[name] for name in (*STAGE_KEY, "assignment_id")]
    chosen = (
        sa.select(*columns)
        .where(one_of(c.state, OPEN_SCOPE), is_free)
        .order_by(c.opened_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("chosen")
    )
    statement = (
        sa.update(pipeline_scope)
        .where(*(c[name] == chosen.c[name] for name in (*STAGE_KEY, "assignment_id")))
        .values(
            state=ScopeState.CLAIMED,
            claim_token=token,
            claimed_until=NOW + sa.func.make_interval(0, 0, 0, 0, 0, 0, claim_seconds),
            attempts=c.attempts + 1,
        )
        .returning(*columns, c.attempts)
    )
    return [
        Claim(
            key=key_from_row(row),
            assignment_id=row.assignment_id,
            token=token,
            attempts=row.attempts,
        )
        for row in await connection.execute(statement)
    ]


async def renew_claims(
    connection: AsyncConnection, claims: Sequence[Claim], claim_seconds: float
) -> None:
    """Hold claims longer; those that are over or another's stay as they are."""
    c = pipeline_scope.c
    await connection.execute(
        sa.update(pipeline_scope)
        .where(
            one_of(c.state, OPEN_SCOPE),
            c.state == ScopeState.CLAIMED,
            c.claim_token.in_({claim.token for claim in claims}),
        )
        .values(claimed_until=NOW + sa.func.make_interval(0, 0, 0, 0, 0, 0, claim_seconds))
    )


async def end_claims(
    connection: AsyncConnection,
    claims: Sequence[Claim],
    state: ScopeState,
    error: str = "",
    *,
    is_counted: bool = True,
) -> set[str]:
    """Leave scopes of one stage in this state; answers those whose claim was still ours.

    A claim under which nothing was tried is not counted as an attempt.
    """
    c = pipeline_scope.c
    held: set[str] = set()
    for token in {claim.token for claim in claims}:
        own = [claim for claim in claims if claim.token == token]
        statement = (
            sa.update(pipeline_scope)
            .where(
                in_stage(pipeline_scope, own[0].key),
                among(c.assignment_id, [claim.assignment_id for claim in own]),
                c.claim_token == token,
                c.state == ScopeState.CLAIMED,
            )
            .values(
                state=state,
                error=error,
                claim_token=None,
                claimed_until=None,
                attempts=c.attempts - (0 if is_counted else 1),
            )
            .returning(c.assignment_id)
        )
        held |= set((await connection.execute(statement)).scalars())
    return held


async def open_scope_places(connection: AsyncConnection, key: StageKey) -> list[Place]:
    """Places of the groups that the pipeline has not finished, earliest first."""
    open_ids = sa.select(pipeline_scope.c.assignment_id).where(
        in_stage(pipeline_scope, key), one_of(pipeline_scope.c.state, OPEN_SCOPE)
    )
    ids = list((await connection.execute(open_ids)).scalars())
    statement = (
        sa.select(assignment.c.explore_step, assignment.c.position)
        .where(in_stage(assignment, key), among(assignment.c.assignment_id, ids))
        .order_by(assignment.c.explore_step, assignment.c.position)
    )
    return [(row.explore_step, row.position) for row in await connection.execute(statement)]
