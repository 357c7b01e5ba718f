"""Statements on samples whose rewards come later, and on the groups that wait for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.domain.states import ExperienceState, ScopeState
from services.buffer.store.copying import add_rows
from services.buffer.store.database import (
    SCOPES_TOPIC,
    among,
    encode_numbers,
    in_stage,
    key_columns,
    notify,
    of_stage,
    one_of,
)
from services.buffer.store.experiences import CODEC, SCHEMA_VERSION
from services.buffer.store.segments import grow_segment, payloads_of
from services.buffer.store.tables import NOW, experience, pipeline_scope
from trinity.types import StageKey

E, C = experience.c, pipeline_scope.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewarded:
    """A sample with the reward it was given, as a new content."""

    experience_id: str
    payload_id: str
    body: bytes
    reward: float
    reward_parts: Mapping[str, float]


async def hold_scopes(
    connection: AsyncConnection, key: StageKey, assignment_ids: Iterable[str]
) -> None:
    """Keep the pipeline from groups that wait for a reward."""
    await connection.execute(
        sa.update(pipeline_scope)
        .where(
            in_stage(pipeline_scope, key),
            among(C.assignment_id, assignment_ids),
            C.state == ScopeState.OPEN,
            C.assignment_id.in_(_waiting(key, assignment_ids)),
        )
        .values(state=ScopeState.AWAITING)
    )


async def release_scopes(
    connection: AsyncConnection, key: StageKey, assignment_ids: Iterable[str]
) -> None:
    """Let the pipeline work on groups that wait for nothing any more."""
    await connection.execute(
        sa.update(pipeline_scope)
        .where(
            in_stage(pipeline_scope, key),
            among(C.assignment_id, assignment_ids),
            C.state == ScopeState.AWAITING,
            C.assignment_id.not_in(_waiting(key, assignment_ids)),
        )
        .values(state=ScopeState.OPEN)
    )
    await notify(connection, SCOPES_TOPIC)


def _waiting(key: StageKey, assignment_ids: Iterable[str]) -> sa.Select[tuple[str]]:
    return sa.select(E.assignment_id).where(
        of_stage(experience, key),
        among(E.assignment_id, assignment_ids),
        one_of(E.state, [ExperienceState.AWAITING]),
    )


async def count_held(connection: AsyncConnection, key: StageKey) -> int:
    """Groups that wait for a reward."""
    statement = (
        sa.select(sa.func.count())
        .select_from(pipeline_scope)
        .where(in_stage(pipeline_scope, key), one_of(C.state, [ScopeState.AWAITING]))
    )
    return int((await connection.execute(statement)).scalar_one())


async def store_reward(connection: AsyncConnection, stage: Stage, one: Rewarded) -> None:
    """Give a sample its reward; the content that came without one stays beside the new one."""
    own = {
        **key_columns(stage.key),
        "segment_id": stage.segment_id,
        "payload_id": one.payload_id,
        "codec": CODEC,
        "schema_version": SCHEMA_VERSION,
        "body": one.body,
    }
    await add_rows(connection, payloads_of(stage.segment_id), [own])
    await grow_segment(connection, stage.key, stage.segment_id, 1, len(one.body))
    await connection.execute(
        sa.update(experience)
        .where(of_stage(experience, stage.key), E.experience_id == one.experience_id)
        .values(
            state=ExperienceState.RAW,
            reward=one.reward,
            segment_id=stage.segment_id,
            payload_id=one.payload_id,
            metrics=E.metrics.op("||")(sa.cast(encode_numbers(one.reward_parts), JSONB)),
        )
    )


async def leave_out_overdue(
    connection: AsyncConnection, key: StageKey, *, seconds: float, reason: str
) -> list[str]:
    """Leave out samples that have waited so long; answers their groups, once a sample."""
    age = sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    statement = (
        sa.update(experience)
        .where(
            in_stage(experience, key),
            one_of(E.state, [ExperienceState.AWAITING]),
            E.created_at < NOW - age,
        )
        .values(state=ExperienceState.FILTERED, reason=reason)
        .returning(E.assignment_id)
    )
    return list((await connection.execute(statement)).scalars())
