"""Segments: partitions of the payload table, so that old payloads can be dropped as a whole.

Each is read and written by its own name, not through `payload`: a session that loads the list of
partitions at the moment when another one attaches a partition may miss it until the next one is
attached (docs/decisions/0047-contents-by-the-name-of-their-partition.md).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import psycopg
import sqlalchemy as sa

from services.buffer.domain.stage import UNTRAINED, AssignmentKind, EvaluationState, Stage
from services.buffer.domain.stage import ScopeState as Scope
from services.buffer.store.database import (
    id_in,
    in_stage,
    key_columns,
    key_from_row,
    number_in,
    of_line,
    of_stage,
    one_of,
    stage_params,
)
from services.buffer.store.media import release_media, segment_user
from services.buffer.store.schema import (
    NOW,
    STAGE_KEY,
    assignment,
    batch_item,
    evaluation,
    experience,
    payload,
    pipeline_scope,
    segment,
    stage,
)
from trinity.errors import Unavailable
from trinity.runtime.sql import Connection, Row
from trinity.types import StageKey

REMOVERS_LOCK = 0x7365676D
"""Advisory lock of the only process that removes partitions: Postgres detaches one at a time."""
FILL = sa.select(segment.c.num_rows, segment.c.num_bytes).where(
    in_stage(segment),
    segment.c.segment_id == sa.select(stage.c.segment_id).where(in_stage(stage)).scalar_subquery(),
)
"""Size of the segment that takes a stage's samples."""
_GROW = (
    sa.update(segment)
    .where(in_stage(segment), segment.c.segment_id == sa.bindparam("given_segment"))
    .values(
        num_rows=segment.c.num_rows + sa.bindparam("more_rows", type_=sa.BigInteger),
        num_bytes=segment.c.num_bytes + sa.bindparam("more_bytes", type_=sa.BigInteger),
    )
)
_UNREMOVED = sa.text(
    "SELECT s.segment_id, i.inhrelid IS NOT NULL AS is_attached,"
    " coalesce(i.inhdetachpending, false) AS is_pending FROM segment s"
    " LEFT JOIN pg_inherits i ON i.inhrelid = to_regclass('payload_' || s.segment_id)"
    " WHERE s.retired_at IS NOT NULL AND s.removed_at IS NULL"
    " ORDER BY is_pending DESC, s.segment_id"
)
EXPERIENCE, SEGMENT = experience.c, segment.c
IDS_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class SegmentSize:
    """Size of the contents of a segment."""

    num_rows: int
    num_bytes: int


async def open_segment(connection: Connection, key: StageKey) -> int:
    """Creates a partition for the next payloads of this stage; returns its segment id.

    It is created as a table and attached: creating it in place would lock out readers of payloads.
    """
    statement = sa.insert(segment).values(key_columns(key)).returning(segment.c.segment_id)
    segment_id = int(await connection.fetch_value(statement))
    name = partition(segment_id)
    await connection.execute(sa.text(f"CREATE TABLE {name} (LIKE payload INCLUDING ALL)"))
    await connection.execute(
        sa.text(f"ALTER TABLE payload ATTACH PARTITION {name} FOR VALUES IN ({segment_id})")
    )
    return segment_id


def partition(segment_id: int) -> str:
    """Returns the name of a segment's table."""
    return f"payload_{segment_id}"


@lru_cache(maxsize=256)
def payloads_of(segment_id: int) -> sa.Table:
    """Returns a segment's table, with the columns of `payload`."""
    return payload.to_metadata(sa.MetaData(), name=partition(segment_id))


@contextmanager
def unavailable_if_dropped() -> Iterator[None]:
    """Wraps reads of a segment that may be retired and dropped in the meantime.

    Raises: Unavailable when it was dropped; a retry finds that the contents are gone.
    """
    try:
        yield
    except psycopg.errors.UndefinedTable as error:
        raise Unavailable("contents were removed while they were read: ask again") from error


async def grow_segment(
    connection: Connection, key: StageKey, segment_id: int, num_rows: int, num_bytes: int
) -> None:
    """Adds stored rows and bytes to the size of a segment."""
    values = stage_params(key, given_segment=segment_id, more_rows=num_rows, more_bytes=num_bytes)
    await connection.execute(_GROW, values)


async def remove_retired(connection: Connection) -> int:
    """Drops the partitions of retired segments, unless another replica does; returns their number.

    Each statement is a separate transaction: after a crash between two of them, the next caller
    continues there. Readers and writers of other partitions are not blocked.
    """
    if not await connection.fetch_value(sa.select(sa.func.pg_try_advisory_lock(REMOVERS_LOCK))):
        return 0
    try:
        found = await connection.fetch(_UNREMOVED)
        for row in found:
            name = partition(row.segment_id)
            if row.is_attached:
                await _detach(connection, name, "FINALIZE" if row.is_pending else "CONCURRENTLY")
            await connection.execute(sa.text(f"DROP TABLE IF EXISTS {name}"))
            await release_media(connection, segment_user(row.segment_id))
            gone = sa.update(segment).where(segment.c.segment_id == row.segment_id)
            await connection.execute(gone.values(removed_at=NOW))
        return len(found)
    finally:
        await connection.execute(sa.select(sa.func.pg_advisory_unlock(REMOVERS_LOCK)))


async def _detach(connection: Connection, name: str, how: str) -> None:
    await connection.execute(sa.text(f"ALTER TABLE payload DETACH PARTITION {name} {how}"))


async def stages_with_old_segments(connection: Connection) -> list[StageKey]:
    """Returns the stages with a full segment that is neither retired nor removed."""
    columns = [segment.c[name] for name in STAGE_KEY]
    statement = (
        sa.select(*columns)
        .where(SEGMENT.removed_at.is_(None), SEGMENT.retired_at.is_(None))
        .group_by(*columns)
        .having(sa.func.count() > 1)
    )
    return [key_from_row(row) for row in await connection.fetch(statement)]


async def old_segments(connection: Connection, stage: Stage) -> set[int]:
    """Returns the segments with contents that are not written to any more."""
    statement = sa.select(SEGMENT.segment_id).where(
        in_stage(segment, stage.key),
        SEGMENT.removed_at.is_(None),
        SEGMENT.retired_at.is_(None),
        SEGMENT.segment_id < stage.segment_id,
    )
    return set(await connection.fetch_column(statement))


async def segments_in_work(connection: Connection, key: StageKey, first_step: int) -> set[int]:
    """Returns the segments with samples that may still be batched or are being evaluated.

    Groups from explore step `first_step` on that are dead are retried if the stage is reopened.
    """
    versions = sa.select(evaluation.c.version).where(
        in_stage(evaluation, key), evaluation.c.state == EvaluationState.OPEN
    )
    measured = sa.select(assignment.c.assignment_id).where(
        in_stage(assignment, key),
        assignment.c.kind == AssignmentKind.EVAL,
        assignment.c.explore_step.in_(versions),
    )
    dead = sa.select(pipeline_scope.c.assignment_id).where(
        in_stage(pipeline_scope, key),
        pipeline_scope.c.state == Scope.DEAD,
        pipeline_scope.c.explore_step >= first_step,
    )
    found = await _segments(connection, key, one_of(EXPERIENCE.state, UNTRAINED))
    if ids := await connection.fetch_column(sa.union_all(measured, dead)):
        found |= await _segments(connection, key, id_in(EXPERIENCE.assignment_id, ids))
    return found


async def segments_batched(
    connection: Connection, stage: Stage, first_step: int, last_step: int
) -> set[int]:
    """Returns the segments with the samples of the batches of these train steps."""
    c = batch_item.c
    rows = (
        sa.select(c.step, c.position, c.experience_id)
        .where(of_line(batch_item, stage), c.step <= last_step)
        .order_by(c.step, c.position)
        .limit(IDS_AT_ONCE)
    )
    found: set[int] = set()
    last = (first_step, -1)
    while True:
        after = sa.tuple_(c.step, c.position) > last
        some = await connection.fetch(rows.where(after))
        ids = [row.experience_id for row in some if row.experience_id is not None]
        if ids:
            found |= await _segments(
                connection, stage.samples_key, id_in(EXPERIENCE.experience_id, ids)
            )
        if len(some) < IDS_AT_ONCE:
            return found
        last = (some[-1].step, some[-1].position)


async def _segments(
    connection: Connection, key: StageKey, chosen: sa.ColumnElement[bool]
) -> set[int]:
    statement = sa.select(EXPERIENCE.segment_id).distinct().where(in_stage(experience, key), chosen)
    return set(await connection.fetch_column(statement))


async def retire_segments(connection: Connection, key: StageKey, ids: Iterable[int]) -> list[Row]:
    """Retires segments; returns rows and bytes of each."""
    statement = (
        sa.update(segment)
        .where(in_stage(segment, key), number_in(SEGMENT.segment_id, ids))
        .values(retired_at=NOW)
        .returning(SEGMENT.num_rows, SEGMENT.num_bytes)
    )
    return await connection.fetch(statement)


async def retired_segments(connection: Connection, key: StageKey) -> set[int]:
    """Returns the retired segments, removed or not."""
    statement = sa.select(SEGMENT.segment_id).where(
        in_stage(segment, key), SEGMENT.retired_at.is_not(None)
    )
    return set(await connection.fetch_column(statement))


async def count_retired(
    connection: Connection, stage: Stage, first_step: int, last_step: int
) -> tuple[int, int]:
    """Counts samples in retired segments in the batches of these steps; also the last such step."""
    c = batch_item.c
    same = sa.and_(
        EXPERIENCE.experience_id == c.experience_id, of_stage(experience, stage.samples_key)
    )
    retired = await retired_segments(connection, stage.samples_key)
    statement = (
        sa.select(sa.func.count(), sa.func.max(c.step))
        .join_from(batch_item, experience, same)
        .where(
            of_line(batch_item, stage),
            c.step.between(first_step, last_step),
            number_in(EXPERIENCE.segment_id, retired),
        )
    )
    number, last = await connection.fetch_one(statement)
    return int(number), int(last or 0)
