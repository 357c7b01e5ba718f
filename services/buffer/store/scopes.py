"""Statements on scopes: what the pipeline works on at once."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.states import (
    OPEN_ASSIGNMENT,
    OPEN_SCOPE,
    AssignmentKind,
    ScopeState,
    StageState,
)
from services.buffer.store.database import (
    SCOPES_TOPIC,
    among,
    among_numbers,
    decode_numbers,
    encode_numbers,
    in_stage,
    key_from_row,
    notify,
    one_of,
    uuid_array,
)
from services.buffer.store.stages import lock_stage
from services.buffer.store.tables import NOW, STAGE_KEY, assignment, pipeline_scope, stage
from trinity.types import StageKey

Place = tuple[int, int]
C = pipeline_scope.c
IS_FREE = sa.or_(
    C.state == ScopeState.OPEN, sa.and_(C.state == ScopeState.CLAIMED, C.claimed_until < NOW)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to work on a scope until it runs out or another claim takes its place."""

    key: StageKey
    assignment_id: str
    explore_step: int
    position: int
    token: str
    attempts: int


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


async def claim_groups(
    connection: AsyncConnection, key: StageKey, *, limit: int, claim_seconds: float
) -> list[Claim]:
    """Take groups of a stage that nobody works on; other workers pass over those taken."""
    chosen = (
        sa.select(C.assignment_id)
        .where(in_stage(pipeline_scope, key), one_of(C.state, OPEN_SCOPE), IS_FREE)
        .order_by(C.opened_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("chosen")
    )
    return await _claim(connection, key, C.assignment_id == chosen.c.assignment_id, claim_seconds)


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
    wanted = sa.and_(among(C.assignment_id, ids), one_of(C.state, OPEN_SCOPE), IS_FREE)
    claims = await _claim(connection, key, wanted, claim_seconds)
    if len(claims) < len(ids):
        # Somebody who was given up has just said that the work goes on.
        await end_claims(connection, claims, ScopeState.OPEN, is_counted=False)
        return []
    attempts = max(claim.attempts for claim in claims)
    return [replace(claim, attempts=attempts) for claim in claims]


async def _ended_groups(connection: AsyncConnection, key: StageKey) -> list[str]:
    """All unfinished groups of the first explore step that can be taken as a whole, if any."""
    statement = (
        sa.select(C.explore_step, C.assignment_id, IS_FREE.label("is_free"))
        .where(in_stage(pipeline_scope, key), one_of(C.state, OPEN_SCOPE))
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
    which: sa.ColumnElement[bool],
    claim_seconds: float,
) -> list[Claim]:
    token = str(uuid.uuid4())
    statement = (
        sa.update(pipeline_scope)
        .where(in_stage(pipeline_scope, key), which)
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


async def open_scope_places(connection: AsyncConnection, key: StageKey) -> list[Place]:
    """Places of the groups that the pipeline has not finished, earliest first."""
    statement = (
        sa.select(C.explore_step, C.position)
        .where(in_stage(pipeline_scope, key), one_of(C.state, OPEN_SCOPE))
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
