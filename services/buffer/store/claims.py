"""Statements on claims: who works on which scopes of the pipeline, and until when."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.states import (
    OPEN_ASSIGNMENT,
    OPEN_SCOPE,
    UNFINISHED_SCOPE,
    AssignmentKind,
    ScopeState,
)
from services.buffer.store.database import (
    among,
    among_numbers,
    encode_numbers,
    in_stage,
    one_of,
    uuid_array,
)
from services.buffer.store.scopes import IS_FREE
from services.buffer.store.stages import lock_stage
from services.buffer.store.tables import NOW, assignment, pipeline_scope
from trinity.types import StageKey

C = pipeline_scope.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to work on a scope until it runs out or another claim takes its place."""

    key: StageKey
    assignment_id: str
    explore_step: int
    position: int
    token: str
    attempts: int


async def claim_groups(
    connection: AsyncConnection, key: StageKey, *, limit: int, claim_seconds: float
) -> list[Claim]:
    """Take groups of a stage that nobody works on; other workers pass over those taken."""
    free = _free(key).order_by(C.opened_at).limit(limit)
    ids = [row.assignment_id for row in await connection.execute(free)]
    return await _claim(connection, key, ids, claim_seconds)


async def claim_step(
    connection: AsyncConnection, key: StageKey, *, claim_seconds: float
) -> list[Claim]:
    """Take all groups of the first explore step none of whose assignments is open.

    All or none: who looks at part of an explore step would see another one each time.
    """
    if not await _ended_groups(connection, key):
        return []
    stage_now = await lock_stage(connection, key)
    ids = await _ended_groups(connection, key) if stage_now.is_open else []
    if not ids:
        return []
    free = _free(key).where(among(C.assignment_id, ids))
    if {row.assignment_id for row in await connection.execute(free)} != set(ids):
        return []
    claims = await _claim(connection, key, ids, claim_seconds)
    attempts = max(claim.attempts for claim in claims)
    return [replace(claim, attempts=attempts) for claim in claims]


def _free(key: StageKey) -> sa.Select[tuple[str]]:
    """Locks scopes that nobody works on; of those that somebody is about to change it takes none.

    Waiting for them under the stage's lock, which their holder may be waiting for, would block
    both.
    """
    return (
        sa.select(C.assignment_id)
        .where(in_stage(pipeline_scope, key), one_of(C.state, OPEN_SCOPE), IS_FREE)
        .with_for_update(skip_locked=True)
    )


async def _ended_groups(connection: AsyncConnection, key: StageKey) -> list[str]:
    """All unfinished groups of the first explore step that can be taken as a whole, if any."""
    statement = (
        sa.select(C.explore_step, C.assignment_id, IS_FREE.label("is_free"))
        .where(in_stage(pipeline_scope, key), one_of(C.state, UNFINISHED_SCOPE))
        .order_by(C.explore_step, C.position)
    )
    scopes = list(await connection.execute(statement))
    taken = {row.explore_step for row in scopes if not row.is_free}
    steps = {row.explore_step for row in scopes} - taken
    a = assignment.c
    unfinished = sa.select(a.explore_step).where(
        in_stage(assignment, key),
        a.kind == AssignmentKind.TRAIN,
        one_of(a.state, OPEN_ASSIGNMENT),
        among_numbers(a.explore_step, steps),
    )
    if ended := steps - set((await connection.execute(unfinished.distinct())).scalars()):
        return [row.assignment_id for row in scopes if row.explore_step == min(ended)]
    return []


async def _claim(
    connection: AsyncConnection,
    key: StageKey,
    ids: Sequence[str],
    claim_seconds: float,
) -> list[Claim]:
    if not ids:
        return []
    token = str(uuid.uuid4())
    statement = (
        sa.update(pipeline_scope)
        .where(in_stage(pipeline_scope, key), among(C.assignment_id, ids))
        .values(
            state=ScopeState.CLAIMED,
            claim_token=token,
            claimed_until=_claim_end(claim_seconds),
            attempts=C.attempts + 1,
        )
        .returning(C.assignment_id, C.explore_step, C.position, C.attempts)
    )
    claims = [
        Claim(
            key=key,
            assignment_id=row.assignment_id,
            explore_step=row.explore_step,
            position=row.position,
            token=token,
            attempts=row.attempts,
        )
        for row in await connection.execute(statement)
    ]
    return sorted(claims, key=lambda claim: (claim.explore_step, claim.position))


def _claim_end(seconds: float) -> sa.ColumnElement[object]:
    return NOW + sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)


async def renew_claims(
    connection: AsyncConnection, claims: Sequence[Claim], claim_seconds: float
) -> None:
    """Hold claims longer; those that are over or another's stay as they are."""
    await connection.execute(
        sa.update(pipeline_scope)
        .where(
            one_of(C.state, OPEN_SCOPE),
            C.state == ScopeState.CLAIMED,
            C.claim_token.in_({claim.token for claim in claims}),
        )
        .values(claimed_until=_claim_end(claim_seconds))
    )


def _is_held(claims: Sequence[Claim], token: str) -> sa.ColumnElement[bool]:
    """Scopes of these claims that are still under their token."""
    own = [claim for claim in claims if claim.token == token]
    return sa.and_(
        in_stage(pipeline_scope, own[0].key),
        among(C.assignment_id, [claim.assignment_id for claim in own]),
        C.claim_token == token,
        C.state == ScopeState.CLAIMED,
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
    held: set[str] = set()
    for token in {claim.token for claim in claims}:
        statement = (
            sa.update(pipeline_scope)
            .where(_is_held(claims, token))
            .values(
                state=state,
                error=error,
                claim_token=None,
                claimed_until=None,
                attempts=C.attempts - (0 if is_counted else 1),
            )
            .returning(C.assignment_id)
        )
        held |= set((await connection.execute(statement)).scalars())
    return held


async def finish_claims(
    connection: AsyncConnection, done: Mapping[Claim, Mapping[str, float]]
) -> set[str]:
    """Note that groups of one stage are shaped, with their figures; answers as `end_claims`."""
    held: set[str] = set()
    for token in {claim.token for claim in done}:
        own = [claim for claim in done if claim.token == token]
        encoded = [json.dumps(encode_numbers(done[claim])) for claim in own]
        unnested = sa.func.unnest(
            uuid_array(claim.assignment_id for claim in own), sa.cast(encoded, ARRAY(sa.Text))
        )
        new = unnested.table_valued("assignment_id", "metrics", name="new").render_derived()
        statement = (
            sa.update(pipeline_scope)
            .where(_is_held(own, token), C.assignment_id == new.c.assignment_id)
            .values(
                state=ScopeState.DONE,
                error="",
                claim_token=None,
                claimed_until=None,
                metrics=sa.cast(new.c.metrics, JSONB),
            )
            .returning(C.assignment_id)
        )
        held |= set((await connection.execute(statement)).scalars())
    return held
