"""Statements on scopes, the units of work of the pipeline."""

import json
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from services.buffer.domain.group import GroupOutcome
from services.buffer.domain.stage import (
    OPEN_SCOPE,
    UNFINISHED_SCOPE,
    AssignmentKind,
    ExperienceState,
    ScopeState,
    StageState,
)
from services.buffer.store.database import (
    SCOPES_TOPIC,
    UUIDS,
    count_rows,
    decode_numbers,
    encode_numbers,
    id_in,
    in_stage,
    key_from_row,
    notify,
    number_in,
    of_stage,
    one_of,
    seconds_from_now,
    stage_params,
    value_of,
)
from services.buffer.store.schema import (
    NOW,
    STAGE_KEY,
    assignment,
    experience,
    pipeline_scope,
    stage,
)
from services.buffer.store.stages import lock_stage
from trinity.runtime.sql import Connection, Row
from trinity.types import StageKey

Place = tuple[int, int]
PIPELINE_SCOPE = pipeline_scope.c
IS_FREE = sa.or_(
    PIPELINE_SCOPE.state == ScopeState.OPEN,
    sa.and_(PIPELINE_SCOPE.state == ScopeState.CLAIMED, PIPELINE_SCOPE.claimed_until < NOW),
)


ASSIGNMENT = assignment.c
_COPIED = (
    *(ASSIGNMENT[name] for name in STAGE_KEY),
    ASSIGNMENT.assignment_id,
    ASSIGNMENT.explore_step,
    ASSIGNMENT.position,
)
_OPEN = sa.insert(pipeline_scope).from_select(
    [*(column.name for column in _COPIED), "state"],
    sa.select(*_COPIED, sa.literal(ScopeState.OPEN.value))
    .where(of_stage(assignment), id_in(ASSIGNMENT.assignment_id))
    .order_by(ASSIGNMENT.explore_step, ASSIGNMENT.position),
)
_WAITING_SINCE = (
    sa.select(sa.func.min(PIPELINE_SCOPE.opened_at))
    .where(*(PIPELINE_SCOPE[name] == stage.c[name] for name in STAGE_KEY))
    .where(one_of(PIPELINE_SCOPE.state, OPEN_SCOPE), IS_FREE)
    .scalar_subquery()
)
_WITH_WORK: sa.Select[Any] = sa.select(
    *(stage.c[name] for name in STAGE_KEY), _WAITING_SINCE.label("since")
).where(stage.c.state == StageState.OPEN)
_UNTIL_CLAIMS_END = sa.select(
    sa.extract("epoch", sa.func.min(PIPELINE_SCOPE.claimed_until) - NOW)
).where(
    one_of(PIPELINE_SCOPE.state, OPEN_SCOPE),
    PIPELINE_SCOPE.state == ScopeState.CLAIMED,
    PIPELINE_SCOPE.claimed_until > NOW,
)
_UNFINISHED = sa.select(
    sa.func.min(PIPELINE_SCOPE.explore_step).label("first_step"), sa.func.count().label("number")
).where(in_stage(pipeline_scope), one_of(PIPELINE_SCOPE.state, UNFINISHED_SCOPE))
# Locks free scopes and skips locked ones: their holder may be waiting for the stage's lock, and
# waiting for them under that lock would be a deadlock.
_FREE = (
    sa.select(PIPELINE_SCOPE.assignment_id)
    .where(in_stage(pipeline_scope), one_of(PIPELINE_SCOPE.state, OPEN_SCOPE), IS_FREE)
    .with_for_update(skip_locked=True)
)
_THESE_FREE = _FREE.where(id_in(PIPELINE_SCOPE.assignment_id))
_UNTIL = seconds_from_now(sa.bindparam("seconds", type_=sa.Float))
_CLAIM = (
    sa.update(pipeline_scope)
    .where(in_stage(pipeline_scope))
    .values(
        state=ScopeState.CLAIMED,
        claim_token=sa.bindparam("token"),
        claimed_until=_UNTIL,
        # A claim expires when its worker died or stalled: that is not the fault of the group.
        attempts=PIPELINE_SCOPE.attempts
        + sa.case((PIPELINE_SCOPE.state == ScopeState.OPEN, 1), else_=0),
    )
    .returning(
        PIPELINE_SCOPE.assignment_id,
        PIPELINE_SCOPE.explore_step,
        PIPELINE_SCOPE.position,
        PIPELINE_SCOPE.attempts,
    )
)
_CLAIM_THESE = _CLAIM.where(id_in(PIPELINE_SCOPE.assignment_id))
_OLDEST_FREE = _FREE.order_by(PIPELINE_SCOPE.opened_at).limit(
    sa.bindparam("limit", type_=sa.Integer)
)
_CLAIM_OLDEST = _CLAIM.where(
    PIPELINE_SCOPE.assignment_id
    == sa.any_(sa.func.array(_OLDEST_FREE.correlate(None).scalar_subquery()))
)
_RENEW = (
    sa.update(pipeline_scope)
    .where(
        one_of(PIPELINE_SCOPE.state, OPEN_SCOPE),
        PIPELINE_SCOPE.state == ScopeState.CLAIMED,
        id_in(PIPELINE_SCOPE.claim_token, name="tokens"),
    )
    .values(claimed_until=_UNTIL)
)
_HELD = sa.and_(
    in_stage(pipeline_scope),
    id_in(PIPELINE_SCOPE.assignment_id),
    PIPELINE_SCOPE.claim_token == sa.bindparam("token"),
    PIPELINE_SCOPE.state == ScopeState.CLAIMED,
)
_END = (
    sa.update(pipeline_scope)
    .where(_HELD)
    .values(
        state=sa.bindparam("new_state"),
        error=sa.bindparam("new_error"),
        claim_token=None,
        claimed_until=None,
        attempts=PIPELINE_SCOPE.attempts - sa.bindparam("not_counted", type_=sa.BigInteger),
    )
    .returning(PIPELINE_SCOPE.assignment_id)
)
_FIGURES = (
    sa.func.unnest(sa.bindparam("ids", type_=UUIDS), sa.bindparam("figures", type_=ARRAY(sa.Text)))
    .table_valued("assignment_id", "metrics", name="new")
    .render_derived()
)
_FINISH = (
    sa.update(pipeline_scope)
    .where(_HELD, PIPELINE_SCOPE.assignment_id == _FIGURES.c.assignment_id)
    .values(
        state=ScopeState.DONE,
        error="",
        claim_token=None,
        claimed_until=None,
        metrics=sa.cast(_FIGURES.c.metrics, JSONB),
    )
    .returning(PIPELINE_SCOPE.assignment_id)
)


async def open_scopes(connection: Connection, key: StageKey, assignment_ids: Sequence[str]) -> None:
    """Opens scopes for complete groups, so that the pipeline processes them."""
    if not assignment_ids:
        return
    await connection.execute(_OPEN, stage_params(key, ids=assignment_ids))
    await notify(connection, SCOPES_TOPIC)


async def update_scopes(
    connection: Connection,
    key: StageKey,
    assignment_ids: Iterable[str],
    *chosen: sa.ColumnElement[bool],
    **values: object,
) -> None:
    """Updates columns of the scopes of these groups for which the conditions hold."""
    own = (in_stage(pipeline_scope, key), id_in(PIPELINE_SCOPE.assignment_id, assignment_ids))
    await connection.execute(sa.update(pipeline_scope).where(*own, *chosen).values(values))


async def hold_scopes(connection: Connection, key: StageKey, assignment_ids: Iterable[str]) -> None:
    """Withholds groups that wait for a reward from the pipeline."""
    waits = PIPELINE_SCOPE.assignment_id.in_(_waiting(key, assignment_ids))
    is_open = PIPELINE_SCOPE.state == ScopeState.OPEN
    await update_scopes(connection, key, assignment_ids, is_open, waits, state=ScopeState.AWAITING)


async def release_scopes(
    connection: Connection, key: StageKey, assignment_ids: Iterable[str]
) -> None:
    """Releases groups to the pipeline once all their rewards have arrived."""
    waits_no_more = PIPELINE_SCOPE.assignment_id.not_in(_waiting(key, assignment_ids))
    is_held = PIPELINE_SCOPE.state == ScopeState.AWAITING
    await update_scopes(
        connection, key, assignment_ids, is_held, waits_no_more, state=ScopeState.OPEN
    )
    await notify(connection, SCOPES_TOPIC)


def _waiting(key: StageKey, assignment_ids: Iterable[str]) -> sa.Select[tuple[str]]:
    return sa.select(experience.c.assignment_id).where(
        of_stage(experience, key),
        id_in(experience.c.assignment_id, assignment_ids),
        one_of(experience.c.state, [ExperienceState.AWAITING]),
    )


async def count_held(connection: Connection, key: StageKey) -> int:
    """Counts the groups that wait for a reward."""
    is_held = one_of(PIPELINE_SCOPE.state, [ScopeState.AWAITING])
    return await count_rows(connection, pipeline_scope, in_stage(pipeline_scope, key), is_held)


async def stages_with_work(connection: Connection) -> list[StageKey]:
    """Returns open stages with free scopes, the longest waiting first."""
    found = [row for row in await connection.fetch(_WITH_WORK) if row.since is not None]
    return [key_from_row(row) for row in sorted(found, key=lambda row: row.since)]


async def seconds_until_claims_end(connection: Connection) -> float | None:
    """Returns the seconds until the next claim of any worker expires; None without one."""
    seconds = await connection.fetch_value(_UNTIL_CLAIMS_END)
    return None if seconds is None else float(seconds)


async def count_unfinished_scopes(connection: Connection, key: StageKey) -> tuple[int, int] | None:
    """Returns the first explore step with unfinished scopes and the number of all unfinished ones.

    None if all scopes are finished.
    """
    row = await connection.fetch_one(_UNFINISHED, stage_params(key))
    return (row.first_step, row.number) if row.number else None


@lru_cache
def _take_metrics(is_bounded: bool) -> sa.Update:
    own = [in_stage(pipeline_scope), one_of(PIPELINE_SCOPE.state, [ScopeState.DONE])]
    if is_bounded:
        last = (sa.bindparam(name, type_=sa.BigInteger) for name in ("last_step", "last_position"))
        own.append(
            sa.tuple_(PIPELINE_SCOPE.explore_step, PIPELINE_SCOPE.position) <= sa.tuple_(*last)
        )
    return (
        sa.update(pipeline_scope)
        .where(*own, PIPELINE_SCOPE.batched_step.is_(None))
        .values(batched_step=sa.bindparam("taken_by", type_=PIPELINE_SCOPE.batched_step.type))
        .returning(PIPELINE_SCOPE.metrics)
    )


async def take_metrics(
    connection: Connection, key: StageKey, step: int, up_to: Place | None
) -> list[dict[str, float]]:
    """Takes the metrics of groups that were finished since the last batch, for batch `step`.

    With `up_to`, those of later groups stay for a later batch.
    """
    bound = {} if up_to is None else {"last_step": up_to[0], "last_position": up_to[1]}
    values = stage_params(key, taken_by=step, **bound)
    found = await connection.fetch_column(_take_metrics(up_to is not None), values)
    return [decode_numbers(metrics) for metrics in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to work on a scope until it expires or another claim replaces it."""

    key: StageKey
    assignment_id: str
    explore_step: int
    position: int
    token: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The result computed for a claimed group."""

    claim: Claim
    operator: str = ""
    outcome: GroupOutcome


async def claim_groups(
    connection: Connection, key: StageKey, *, limit: int, claim_seconds: float
) -> list[Claim]:
    """Claims free groups of a stage, oldest first; other workers skip them from then on.

    One statement, which needs no transaction around it.
    """
    token = str(uuid.uuid4())
    values = stage_params(key, limit=limit, token=token, seconds=claim_seconds)
    return _claims(key, token, await connection.fetch(_CLAIM_OLDEST, values))


async def claim_step(connection: Connection, key: StageKey, *, claim_seconds: float) -> list[Claim]:
    """Claims all groups of the first explore step that has no open assignment.

    It never claims a part of them: a worker would get a different part each time.
    """
    if not await _ended_groups(connection, key):
        return []
    stage_now = await lock_stage(connection, key)
    ids = await _ended_groups(connection, key) if stage_now.is_open else []
    if not ids:
        return []
    free = await connection.fetch(_THESE_FREE, stage_params(key, ids=ids))
    if {row.assignment_id for row in free} != set(ids):
        return []
    claims = await _claim(connection, key, ids, claim_seconds)
    attempts = max(claim.attempts for claim in claims)
    return [replace(claim, attempts=attempts) for claim in claims]


async def _ended_groups(connection: Connection, key: StageKey) -> list[str]:
    """Returns all unfinished groups of the first step that can be claimed as a whole, if any."""
    statement = (
        sa.select(
            PIPELINE_SCOPE.explore_step, PIPELINE_SCOPE.assignment_id, IS_FREE.label("is_free")
        )
        .where(in_stage(pipeline_scope, key), one_of(PIPELINE_SCOPE.state, UNFINISHED_SCOPE))
        .order_by(PIPELINE_SCOPE.explore_step, PIPELINE_SCOPE.position)
    )
    scopes = await connection.fetch(statement)
    taken = {row.explore_step for row in scopes if not row.is_free}
    steps = {row.explore_step for row in scopes} - taken
    a = assignment.c
    unfinished = sa.select(a.explore_step).where(
        in_stage(assignment, key),
        a.kind == AssignmentKind.TRAIN,
        a.is_open,
        number_in(a.explore_step, steps),
    )
    if ended := steps - set(await connection.fetch_column(unfinished.distinct())):
        return [row.assignment_id for row in scopes if row.explore_step == min(ended)]
    return []


async def _claim(
    connection: Connection, key: StageKey, ids: Sequence[str], claim_seconds: float
) -> list[Claim]:
    token = str(uuid.uuid4())
    values = stage_params(key, ids=ids, token=token, seconds=claim_seconds)
    return _claims(key, token, await connection.fetch(_CLAIM_THESE, values))


def _claims(key: StageKey, token: str, rows: Sequence[Row]) -> list[Claim]:
    claims = [value_of(Claim, row, key=key, token=token) for row in rows]
    return sorted(claims, key=lambda claim: (claim.explore_step, claim.position))


async def renew_claims(
    connection: Connection, claims: Sequence[Claim], claim_seconds: float
) -> None:
    """Extends claims; those that have ended or that another worker holds are left as they are."""
    tokens = list({claim.token for claim in claims})
    await connection.execute(_RENEW, {"tokens": tokens, "seconds": claim_seconds})


async def end_claims(
    connection: Connection,
    claims: Sequence[Claim],
    state: ScopeState,
    error: str = "",
    *,
    is_counted: bool = True,
) -> set[str]:
    """Moves claimed scopes of one stage to a state; returns those whose claim was still held.

    Use `is_counted=False` for claims that were not tried: they do not count as attempts.
    """
    held: set[str] = set()
    for token, own in _by_token(claims).items():
        new = {"new_state": state, "new_error": error, "not_counted": int(not is_counted)}
        values = _held_values(own, token, **new)
        held |= set(await connection.fetch_column(_END, values))
    return held


async def finish_claims(
    connection: Connection, done: Mapping[Claim, Mapping[str, float]]
) -> set[str]:
    """Marks groups of one stage as done, with their metrics; returns the same as `end_claims`."""
    held: set[str] = set()
    for token, own in _by_token(done).items():
        figures = [json.dumps(encode_numbers(done[claim])) for claim in own]
        values = _held_values(own, token, figures=figures)
        held |= set(await connection.fetch_column(_FINISH, values))
    return held


def _by_token(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    own: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        own[claim.token].append(claim)
    return own


def _held_values(claims: Sequence[Claim], token: str, **values: object) -> dict[str, object]:
    ids = [claim.assignment_id for claim in claims]
    return stage_params(claims[0].key, ids=ids, token=token, **values)
