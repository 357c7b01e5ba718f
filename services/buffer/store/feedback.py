"""Statements on samples whose rewards arrive later, and on groups that wait for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from services.buffer.domain.stage import ExperienceState, ScopeState
from services.buffer.store.database import (
    SCOPES_TOPIC,
    count_rows,
    encode_numbers,
    id_in,
    in_stage,
    notify,
    of_stage,
    one_of,
    seconds_from_now,
)
from services.buffer.store.schema import experience, pipeline_scope
from services.buffer.store.segments import payloads_of
from trinity.runtime.sql import Connection
from trinity.types import StageKey

EXPERIENCE, PIPELINE_SCOPE = experience.c, pipeline_scope.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewarded:
    """A sample with the reward that it was given; `body` is its new content."""

    experience_id: str
    body: bytes
    reward: float
    reward_parts: Mapping[str, float]


async def hold_scopes(connection: Connection, key: StageKey, assignment_ids: Iterable[str]) -> None:
    """Withholds groups that wait for a reward from the pipeline."""
    await connection.execute(
        sa.update(pipeline_scope)
        .where(
            in_stage(pipeline_scope, key),
            id_in(PIPELINE_SCOPE.assignment_id, assignment_ids),
            PIPELINE_SCOPE.state == ScopeState.OPEN,
            PIPELINE_SCOPE.assignment_id.in_(_waiting(key, assignment_ids)),
        )
        .values(state=ScopeState.AWAITING)
    )


async def release_scopes(
    connection: Connection, key: StageKey, assignment_ids: Iterable[str]
) -> None:
    """Releases groups to the pipeline once all their rewards have arrived."""
    await connection.execute(
        sa.update(pipeline_scope)
        .where(
            in_stage(pipeline_scope, key),
            id_in(PIPELINE_SCOPE.assignment_id, assignment_ids),
            PIPELINE_SCOPE.state == ScopeState.AWAITING,
            PIPELINE_SCOPE.assignment_id.not_in(_waiting(key, assignment_ids)),
        )
        .values(state=ScopeState.OPEN)
    )
    await notify(connection, SCOPES_TOPIC)


def _waiting(key: StageKey, assignment_ids: Iterable[str]) -> sa.Select[tuple[str]]:
    return sa.select(EXPERIENCE.assignment_id).where(
        of_stage(experience, key),
        id_in(EXPERIENCE.assignment_id, assignment_ids),
        one_of(EXPERIENCE.state, [ExperienceState.AWAITING]),
    )


async def count_held(connection: Connection, key: StageKey) -> int:
    """Counts the groups that wait for a reward."""
    is_held = one_of(PIPELINE_SCOPE.state, [ScopeState.AWAITING])
    return await count_rows(connection, pipeline_scope, in_stage(pipeline_scope, key), is_held)


async def store_reward(connection: Connection, key: StageKey, rewarded: Rewarded) -> None:
    """Stores the reward of a sample, and replaces its content by the one with the reward."""
    statement = (
        sa.update(experience)
        .where(of_stage(experience, key), EXPERIENCE.experience_id == rewarded.experience_id)
        .values(
            state=ExperienceState.RAW,
            reward=rewarded.reward,
            metrics=EXPERIENCE.metrics.op("||")(
                sa.cast(encode_numbers(rewarded.reward_parts), JSONB)
            ),
        )
        .returning(EXPERIENCE.segment_id, EXPERIENCE.payload_id)
    )
    segment_id, payload_id = await connection.fetch_one(statement)
    await _replace_content(connection, key, segment_id, payload_id, rewarded.body)


async def _replace_content(
    connection: Connection, key: StageKey, segment_id: int, payload_id: str, body: bytes
) -> None:
    table = payloads_of(segment_id)
    await connection.execute(
        sa.update(table)
        .where(
            in_stage(table, key), table.c.segment_id == segment_id, table.c.payload_id == payload_id
        )
        .values(body=body)
    )


async def leave_out_overdue(
    connection: Connection, key: StageKey, *, seconds: float, reason: str
) -> list[str]:
    """Filters samples that have waited for so long; returns their groups, one entry per sample."""
    statement = (
        sa.update(experience)
        .where(
            in_stage(experience, key),
            one_of(EXPERIENCE.state, [ExperienceState.AWAITING]),
            EXPERIENCE.created_at < seconds_from_now(-seconds),
        )
        .values(state=ExperienceState.FILTERED, reason=reason)
        .returning(EXPERIENCE.assignment_id)
    )
    return await connection.fetch_column(statement)
