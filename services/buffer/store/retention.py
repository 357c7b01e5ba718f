"""Statements that find the segments whose contents are still needed, and retire the others."""

from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.domain.states import AssignmentKind, EvaluationState, ExperienceState
from services.buffer.domain.states import ScopeState as Scope
from services.buffer.store.database import among, in_stage, key_from_row, of_stage, one_of
from services.buffer.store.tables import (
    NOW,
    STAGE_KEY,
    assignment,
    batch_item,
    evaluation,
    experience,
    pipeline_scope,
    segment,
)
from trinity.types import StageKey

E, S = experience.c, segment.c
WAITING = (ExperienceState.AWAITING, ExperienceState.RAW, ExperienceState.READY)
"""Samples that may still come into a batch."""
IDS_AT_ONCE = 20_000


async def stages_with_old_segments(connection: AsyncConnection) -> list[StageKey]:
    """Returns the stages with a full segment that is neither retired nor removed."""
    columns = [segment.c[name] for name in STAGE_KEY]
    statement = (
        sa.select(*columns)
        .where(S.removed_at.is_(None), S.retired_at.is_(None))
        .group_by(*columns)
        .having(sa.func.count() > 1)
    )
    return [key_from_row(row) for row in await connection.execute(statement)]


async def old_segments(connection: AsyncConnection, stage: Stage) -> set[int]:
    """Returns the segments with contents that are not written to any more."""
    statement = sa.select(S.segment_id).where(
        in_stage(segment, stage.key),
        S.removed_at.is_(None),
        S.retired_at.is_(None),
        S.segment_id < stage.segment_id,
    )
    return set((await connection.execute(statement)).scalars())


async def segments_waiting(connection: AsyncConnection, key: StageKey) -> set[int]:
    """Returns the segments with samples that may still be batched."""
    return await _segments(connection, key, one_of(E.state, WAITING))


async def segments_evaluated(connection: AsyncConnection, key: StageKey) -> set[int]:
    """Returns the segments with samples of open evaluations."""
    versions = sa.select(evaluation.c.version).where(
        in_stage(evaluation, key), evaluation.c.state == EvaluationState.OPEN
    )
    measured = sa.select(assignment.c.assignment_id).where(
        in_stage(assignment, key),
        assignment.c.kind == AssignmentKind.EVAL,
        assignment.c.explore_step.in_(versions),
    )
    ids = list((await connection.execute(measured)).scalars())
    return await _segments(connection, key, among(E.assignment_id, ids)) if ids else set()


async def segments_reopened(
    connection: AsyncConnection, key: StageKey, first_step: int
) -> set[int]:
    """Returns the segments with dead groups, which are retried if the stage is reopened."""
    dead = sa.select(pipeline_scope.c.assignment_id).where(
        in_stage(pipeline_scope, key),
        pipeline_scope.c.state == Scope.DEAD,
        pipeline_scope.c.explore_step >= first_step,
    )
    ids = list((await connection.execute(dead)).scalars())
    return await _segments(connection, key, among(E.assignment_id, ids)) if ids else set()


async def segments_batched(
    connection: AsyncConnection, stage: Stage, first_step: int, last_step: int
) -> set[int]:
    """Returns the segments with the samples of the batches of these train steps."""
    c = batch_item.c
    rows = (
        sa.select(c.step, c.position, c.experience_id)
        .where(in_stage(batch_item, stage.key), c.line == stage.line, c.step <= last_step)
        .order_by(c.step, c.position)
        .limit(IDS_AT_ONCE)
    )
    found: set[int] = set()
    last = (first_step, -1)
    while True:
        after = sa.tuple_(c.step, c.position) > last
        some = (await connection.execute(rows.where(after))).all()
        ids = [row.experience_id for row in some if row.experience_id is not None]
        if ids:
            found |= await _segments(connection, stage.samples_key, among(E.experience_id, ids))
        if len(some) < IDS_AT_ONCE:
            return found
        last = (some[-1].step, some[-1].position)


async def _segments(
    connection: AsyncConnection, key: StageKey, chosen: sa.ColumnElement[bool]
) -> set[int]:
    statement = sa.select(E.segment_id).distinct().where(in_stage(experience, key), chosen)
    return set((await connection.execute(statement)).scalars())


async def retire_segments(
    connection: AsyncConnection, key: StageKey, ids: Iterable[int]
) -> Sequence[sa.Row[tuple[int, int]]]:
    """Retires segments; returns rows and bytes of each."""
    statement = (
        sa.update(segment)
        .where(in_stage(segment, key), S.segment_id.in_(list(ids)))
        .values(retired_at=NOW)
        .returning(S.num_rows, S.num_bytes)
    )
    return (await connection.execute(statement)).all()


async def retired_segments(connection: AsyncConnection, key: StageKey) -> set[int]:
    """Returns the retired segments, removed or not."""
    statement = sa.select(S.segment_id).where(in_stage(segment, key), S.retired_at.is_not(None))
    return set((await connection.execute(statement)).scalars())


async def count_retired(
    connection: AsyncConnection, stage: Stage, first_step: int, last_step: int
) -> tuple[int, int]:
    """Counts samples in retired segments in the batches of these steps; also the last such step."""
    c = batch_item.c
    same = sa.and_(E.experience_id == c.experience_id, of_stage(experience, stage.samples_key))
    retired = await retired_segments(connection, stage.samples_key)
    statement = (
        sa.select(sa.func.count(), sa.func.max(c.step))
        .join_from(batch_item, experience, same)
        .where(
            in_stage(batch_item, stage.key),
            c.line == stage.line,
            c.step.between(first_step, last_step),
            E.segment_id.in_(retired),
        )
    )
    number, last = (await connection.execute(statement)).one()
    return int(number), int(last or 0)
