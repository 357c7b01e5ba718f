"""Statements on samples that batches may draw by priority, for the first time or again."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from services.buffer.domain.replay import ReplayCandidate
from services.buffer.domain.stage import ExperienceState, Stage
from services.buffer.store.database import (
    BIGINTS,
    count_rows,
    id_in,
    in_stage,
    insert_rows,
    key_columns,
    of_line,
    of_stage,
    one_of,
    stage_params,
    value_of,
)
from services.buffer.store.ready_rows import Place, is_ready
from services.buffer.store.schema import batch, batch_item, experience, replay_pool
from trinity.runtime.sql import Connection, Row
from trinity.types import StageKey

EXPERIENCE, REPLAY_POOL, USED = experience.c, replay_pool.c, batch_item.c
_SEEN = tuple(
    EXPERIENCE[name]
    for name in (
        *("experience_id", "explore_step", "position", "run", "step", "suffix"),
        *("version_min", "version_max", "reward", "advantage"),
    )
)
_POOL = sa.select(REPLAY_POOL.experience_id).where(in_stage(replay_pool))
_POOLED: sa.Select[Any] = sa.select(*_SEEN).where(
    of_stage(experience),
    id_in(EXPERIENCE.experience_id),
    one_of(EXPERIENCE.state, [ExperienceState.BATCHED]),
)
_USES = (
    sa.select(USED.experience_id, sa.func.count(), sa.func.max(USED.step))
    .where(
        in_stage(batch_item),
        USED.line == sa.bindparam("given_line"),
        USED.experience_id.is_not(None),
        id_in(USED.experience_id),
    )
    .group_by(USED.experience_id)
)
_AGES = sa.select(
    batch.c.step, sa.extract("epoch", sa.func.clock_timestamp() - batch.c.composed_at)
).where(
    in_stage(batch),
    batch.c.line == sa.bindparam("given_line"),
    batch.c.step == sa.any_(sa.bindparam("given_steps", type_=BIGINTS)),
)
_LEAVE = sa.delete(replay_pool).where(in_stage(replay_pool), id_in(REPLAY_POOL.experience_id))


async def load_unused(
    connection: Connection, stage: Stage, before: Place | None
) -> list[ReplayCandidate]:
    """Returns samples that were in no batch; with `before`, only of groups before that place."""
    statement: sa.Select[Any] = sa.select(*_SEEN).where(is_ready(stage.key, before))
    return [_waiting(row, 0, 0) for row in await connection.fetch(statement)]


async def load_used(connection: Connection, stage: Stage) -> list[ReplayCandidate]:
    """Returns samples of the pool, with the number and last step of their uses on the line."""
    ids = await connection.fetch_column(_POOL, stage_params(stage.key))
    if not ids:
        return []
    of_line = stage_params(stage.key, ids=ids, given_line=stage.line)
    found = await connection.fetch(_USES, of_line)
    uses = {experience_id: (number, last) for experience_id, number, last in found}
    ages = await _ages(connection, stage, {last for _, last in uses.values()})
    rows = await connection.fetch(_POOLED, stage_params(stage.key, ids=ids))
    used = [_waiting(row, *uses[row[0]]) for row in rows if row[0] in uses]
    return [replace(row, rested_seconds=ages.get(row.last_step, 0.0)) for row in used]


async def _ages(connection: Connection, stage: Stage, steps: Collection[int]) -> dict[int, float]:
    """Returns the seconds since the batches of these steps were composed, where they count."""
    if stage.plan.replay is None or not stage.plan.replay.cooldown_seconds:
        return {}
    params = stage_params(stage.key, given_line=stage.line, given_steps=list(steps))
    return {step: float(age) for step, age in await connection.fetch(_AGES, params)}


def _waiting(row: Row, num_uses: int, last_step: int) -> ReplayCandidate:
    return value_of(
        ReplayCandidate,
        row,
        place=(row.explore_step, row.position, row.run, row.step, row.suffix),
        version=row.version_min,
        newest_version=row.version_max,
        num_uses=num_uses,
        last_step=last_step,
    )


async def enter_pool(connection: Connection, key: StageKey, ids: Sequence[str]) -> None:
    """Adds samples to the pool: further batches may use them."""
    rows = [{**key_columns(key), "experience_id": own_id} for own_id in ids]
    await insert_rows(connection, replay_pool, rows, ignore_existing=True)


async def leave_pool(connection: Connection, key: StageKey, ids: Collection[str]) -> None:
    """Removes samples from the pool: no further batch uses them."""
    if ids:
        await connection.execute(_LEAVE, stage_params(key, ids=list(ids)))


async def withdraw(
    connection: Connection, key: StageKey, ids: Collection[str], reason: str
) -> None:
    """Keeps samples out of further batches of any stage, and records the user's reason."""
    await leave_pool(connection, key, ids)
    if ids:
        chosen = sa.and_(_batched(key, ids), EXPERIENCE.reason == "")
        await connection.execute(sa.update(experience).where(chosen).values(reason=reason))


async def restore_withdrawn(connection: Connection, stage: Stage, ids: Collection[str]) -> int:
    """Reverses `withdraw` for those of the samples that have a reason; returns their number."""
    if not ids:
        return 0
    statement = (
        sa.update(experience)
        .where(_batched(stage.key, ids), EXPERIENCE.reason != "")
        .values(reason="")
        .returning(EXPERIENCE.experience_id)
    )
    withdrawn = await connection.fetch_column(statement)
    if stage.plan.replay is not None and stage.plan.replay.cooldown_steps is not None:
        await enter_pool(connection, stage.key, withdrawn)
    return len(withdrawn)


def _batched(key: StageKey, ids: Collection[str]) -> sa.ColumnElement[bool]:
    return sa.and_(
        of_stage(experience, key),
        id_in(EXPERIENCE.experience_id, ids),
        one_of(EXPERIENCE.state, [ExperienceState.BATCHED]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCounts:
    """Counts of samples that were trained more than once."""

    num_trained: int
    """Samples in batches, each counted once."""
    num_replayed: int
    """Rows of batches whose sample had been trained before."""
    max_uses: int
    num_waiting: int


async def count_replayed(connection: Connection, stage: Stage) -> ReplayCounts:
    """Counts replayed samples over all batches of the line."""
    uses = (
        sa.select(sa.func.count().label("number"))
        .where(of_line(batch_item, stage), USED.experience_id.is_not(None))
        .group_by(USED.experience_id)
        .subquery()
    )
    number = uses.c.number
    totals = sa.select(
        sa.func.count(), sa.func.coalesce(sa.func.sum(number), 0), sa.func.max(number)
    )
    num_trained, num_rows, most = await connection.fetch_one(totals)
    return ReplayCounts(
        num_trained=num_trained,
        num_replayed=int(num_rows) - num_trained,
        max_uses=most or 0,
        num_waiting=await count_rows(connection, replay_pool, in_stage(replay_pool, stage.key)),
    )


async def segments_replayed(connection: Connection, key: StageKey) -> set[int]:
    """Returns the segments with contents of samples in the pool."""
    ids = await connection.fetch_column(_POOL, stage_params(key))
    statement = (
        sa.select(EXPERIENCE.segment_id)
        .distinct()
        .where(of_stage(experience), id_in(EXPERIENCE.experience_id))
    )
    return set(await connection.fetch_column(statement, stage_params(key, ids=ids)))
