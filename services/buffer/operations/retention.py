"""Retires the contents that a stage no longer needs, by segment."""

from dataclasses import dataclass

from services.buffer.domain.replay import last_releasable_step
from services.buffer.domain.stage import Stage, first_unbatched_step
from services.buffer.store.curation import oldest_kept_step
from services.buffer.store.ready_rows import segments_taken
from services.buffer.store.replay import segments_replayed
from services.buffer.store.reports import log_notice
from services.buffer.store.segments import (
    old_segments,
    retire_segments,
    retired_segments,
    segments_batched,
    segments_in_work,
)
from services.buffer.store.stages import get_stage, list_stopped, list_unfinished, lock_stage
from services.buffer.store.turns import segments_of_open_sessions
from trinity.runtime.sql import Connection
from trinity.types import StageKey


@dataclass(frozen=True, slots=True)
class RetiredCounts:
    """Numbers of retired segments and rows, and their size."""

    num_segments: int = 0
    num_rows: int = 0
    num_bytes: int = 0


@dataclass(slots=True)
class _CachedSegments:
    released_step: int
    up_to: int
    segments: set[int]


class BatchedSegmentCache:
    """A cache of the segments with samples of batches that are or may be trained again.

    A recorded batch never changes, so only batches recorded since the last call are read. The cache
    is rebuilt when older batches are no longer needed.
    """

    def __init__(self) -> None:
        self._cached: dict[StageKey, _CachedSegments] = {}

    async def get(self, connection: Connection, stage: Stage) -> set[int]:
        """Returns all of them; the cost grows with the batches recorded since the last call."""
        let_go = last_releasable_step(stage, await oldest_kept_step(connection, stage))
        seen = self._cached.get(stage.key)
        if seen is None or seen.released_step != let_go:
            seen = self._cached[stage.key] = _CachedSegments(let_go, let_go, set())
        found = await segments_batched(connection, stage, seen.up_to + 1, stage.recorded_step)
        seen.segments |= found
        seen.up_to = max(seen.up_to, stage.recorded_step)
        return seen.segments


async def retire_contents(
    connection: Connection, key: StageKey, batched: BatchedSegmentCache
) -> RetiredCounts:
    """Retires every old segment without needed contents.

    The stage's lock is held, so transactions that take rows or begin to retrain them run before or
    after. A retired segment is never needed again, so it may be dropped at any later time.
    """
    before = await get_stage(connection, key)
    if before.plan.config.buffer.keep_steps is None:
        return RetiredCounts()
    await batched.get(connection, before)  # most of the work, done before taking the lock
    stage = await lock_stage(connection, key)
    old = await old_segments(connection, stage)
    unneeded = old and old - await needed_segments(connection, stage, batched)
    if not unneeded:
        return RetiredCounts()
    is_first = not await retired_segments(connection, key)
    rows = await retire_segments(connection, key, unneeded)
    if is_first:
        await _log_retention_started(connection, stage)
    return RetiredCounts(
        num_segments=len(rows),
        num_rows=sum(row.num_rows for row in rows),
        num_bytes=sum(row.num_bytes for row in rows),
    )


async def needed_segments(
    connection: Connection, stage: Stage, batched: BatchedSegmentCache
) -> set[int]:
    """Returns segments with contents that may still be read.

    These hold samples that may enter a batch, samples of batches that are or may be trained again,
    of running evaluations, of groups that are retried when the stage is reopened, samples in the
    replay pool, and turns of runs that are still going on.
    """
    key = stage.key
    return {
        *await segments_in_work(connection, key, first_unbatched_step(stage)),
        *await batched.get(connection, stage),
        *await segments_replayed(connection, key),
        *await segments_of_open_sessions(connection, key),
        *await _trained_again(connection, stage),
    }


async def _trained_again(connection: Connection, stage: Stage) -> set[int]:
    """Returns segments that another, unfinished stage reads from this one.

    A stage that failed or was cancelled may be reopened: it then trains its newest batches again
    and takes further samples after them. A stage that trains recorded batches takes no others.
    """
    found: set[int] = set()
    for other in await list_stopped(connection, stage.key):
        if other.plan.stored_rollouts and other.samples_key == stage.key:
            first = await oldest_kept_step(connection, other) + 1
            found |= await segments_batched(connection, other, first, other.recorded_step)
    for other in await list_unfinished(connection, stage.key.tenant, ""):
        if other.key == stage.key or other.samples_key != stage.key:
            continue
        if other.plan.stored_rollouts is not None:
            found |= {*await segments_taken(connection, stage.key)}
        elif (stored := other.plan.stored_batches) is not None:
            first, last = stored.first_step, stored.last_step
            found |= await segments_batched(connection, stage, first, last)
    return found


async def _log_retention_started(connection: Connection, stage: Stage) -> None:
    kept = stage.plan.config.buffer.keep_steps
    text = (
        f"contents of old samples are removed from now on (`buffer.keep_steps: {kept}`); their "
        "metadata and batches are kept"
    )
    await log_notice(connection, stage.key, text)
