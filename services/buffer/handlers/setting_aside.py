"""Takes samples out at a person's word: excluded ones stay to be looked at, deleted ones do not.

What was excluded may be included again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.domain.states import AssignmentKind, ExperienceState, StageState
from services.buffer.store.database import notify, stage_topics
from services.buffer.store.evaluations import open_versions
from services.buffer.store.feedback import hold_scopes, release_scopes
from services.buffer.store.progress import forget_samples
from services.buffer.store.queries import StoredExperience
from services.buffer.store.replay_pool import leave_pool, take_back_batched, withdraw
from services.buffer.store.retention import retired_segments
from services.buffer.store.set_aside import (
    UNTRAINED,
    delete_content,
    exclude,
    mark_deleted,
    needed_steps,
    oldest_kept_step,
    revoke_claims,
)
from services.buffer.store.stages import get_stage, list_unfinished, lock_stage
from services.buffer.store.taking_back import find_includable, reopen_finished_scopes, take_back
from trinity.errors import PreconditionFailed
from trinity.types import StageKey


@dataclass(slots=True, kw_only=True)
class Excluded:
    """How many samples were excluded, and how many cannot be."""

    num_excluded: int = 0
    num_batched: int = 0


@dataclass(slots=True, kw_only=True)
class Included:
    """How many samples were included again, and how many cannot be."""

    num_included: int = 0
    num_too_late: int = 0


@dataclass(slots=True, kw_only=True)
class Deleted:
    """How many samples were deleted, and how many bytes they held."""

    num_deleted: int = 0
    num_bytes: int = 0


async def exclude_experiences(
    connection: AsyncConnection, key: StageKey, rows: Sequence[StoredExperience], reason: str
) -> int:
    """Keep samples from being trained on, whatever the pipeline is doing with them.

    Those in a batch stay there, come into no further one, and keep why.
    """
    ids = [row.experience_id for row in rows]
    untrained = [row for row in rows if row.state in UNTRAINED]
    if not untrained:
        await lock_stage(connection, key)
        await withdraw(connection, key, ids, reason)
        return 0
    await revoke_claims(connection, key, {row.assignment_id for row in untrained})
    await lock_stage(connection, key)
    await withdraw(connection, key, ids, reason)
    num_excluded = await exclude(connection, key, untrained, reason)
    await release_scopes(connection, key, {row.assignment_id for row in untrained})
    # They leave room for further work, and a batch may have waited for their groups.
    await notify(connection, *stage_topics(key))
    return num_excluded


def was_excluded(row: StoredExperience) -> bool:
    """Whether a person took it out, of all batches or, once it was in some, of further ones."""
    if row.state is ExperienceState.BATCHED:
        return row.reason != ""
    return row.state is ExperienceState.EXCLUDED


async def include_experiences(
    connection: AsyncConnection,
    key: StageKey,
    rows: Sequence[StoredExperience],
    *,
    is_dry_run: bool,
) -> Included:
    """Let samples that were excluded be trained on after all.

    Advantages belong to a group: where others of it were shaped without a sample, it comes too
    late, and so it does when the stage has ended, or its content need not be kept any more. Those
    in a batch are there for other runs as long as they have their content.
    """
    if not is_dry_run:
        await revoke_claims(connection, key, {row.assignment_id for row in rows})
    stage = await lock_stage(connection, key)
    there = await _with_content(connection, stage, rows)
    again = [row.experience_id for row in there if row.state is ExperienceState.BATCHED]
    found = await find_includable(connection, key, there) if stage.is_open else []
    num_found = len(found) + len(again)
    included = Included(num_included=num_found, num_too_late=len(rows) - num_found)
    if is_dry_run or not num_found:
        return included
    included.num_included = await take_back_batched(connection, stage, again)
    included.num_included += await take_back(connection, stage, found)
    unshaped = {row.assignment_id for row in found if row.parent_id is None}
    await reopen_finished_scopes(connection, key, unshaped)
    await hold_scopes(connection, key, unshaped)
    await notify(connection, *stage_topics(key))
    return included


async def _with_content(
    connection: AsyncConnection, stage: Stage, rows: Sequence[StoredExperience]
) -> list[StoredExperience]:
    """Those that somebody could still train on."""
    retired = await retired_segments(connection, stage.key)
    return [row for row in rows if row.segment_id not in retired]


async def check_deletable(
    connection: AsyncConnection,
    key: StageKey,
    kind: AssignmentKind,
    rows: Sequence[StoredExperience],
) -> None:
    """Raises: PreconditionFailed when somebody may still need the content of one of them."""
    stage = await get_stage(connection, key)
    if stage.state is not StageState.FINISHED and (
        needed := await needed_steps(connection, stage, rows)
    ):
        steps = ", ".join(str(step) for step in needed)
        kept = await oldest_kept_step(connection, stage)
        since = f"from the checkpoint of step {kept} on" if kept else "from the beginning on"
        raise PreconditionFailed(
            f"{sum(needed.values())} of these samples are in the batch of step {steps}, which may "
            f"be trained again: the trainer resumes {since}; nothing was deleted"
        )
    for other in await list_unfinished(connection, key.tenant, ""):
        if other.key != key and other.samples_key == key:
            what = "they are" if other.plan.stored_rollouts else "their batches are"
            raise PreconditionFailed(f"{what} being trained again; nothing was deleted")
    if kind is AssignmentKind.EVAL:
        measured = set(await open_versions(connection, key))
        if measured & {row.cursor.explore_step for row in rows}:
            raise PreconditionFailed("the evaluation of these samples goes on; nothing was deleted")


async def delete_experiences(
    connection: AsyncConnection,
    key: StageKey,
    kind: AssignmentKind,
    rows: Sequence[StoredExperience],
    reason: str,
) -> Deleted:
    """Delete the content of samples; what they were, and why they went, stays known.

    Raises: PreconditionFailed when somebody may still need it.
    """
    there = [row for row in rows if row.state is not ExperienceState.DELETED]
    if not there:
        return Deleted()
    await revoke_claims(connection, key, {row.assignment_id for row in there})
    await lock_stage(connection, key)
    await check_deletable(connection, key, kind, there)
    ids = await mark_deleted(connection, key, there, reason)
    await leave_pool(connection, key, ids)
    await forget_samples(connection, key.tenant, ids)
    num_bytes = await delete_content(connection, key, there)
    await release_scopes(connection, key, {row.assignment_id for row in there})
    await notify(connection, *stage_topics(key))
    return Deleted(num_deleted=len(there), num_bytes=num_bytes)
