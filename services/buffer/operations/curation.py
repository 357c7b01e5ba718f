"""Excludes, includes and deletes samples on a person's request.

Excluded samples can still be viewed and included again; the content of deleted ones is gone.
"""

from collections.abc import Sequence

from services.buffer.domain.stage import (
    UNTRAINED,
    AssignmentKind,
    ExperienceState,
    Stage,
    StageState,
)
from services.buffer.store.curation import (
    Change,
    ChangeReason,
    delete_content,
    exclude,
    find_includable,
    mark_deleted,
    needed_steps,
    oldest_kept_step,
    record_change,
    reopen_finished_scopes,
    restore_excluded,
    revoke_claims,
)
from services.buffer.store.database import notify, stage_topics
from services.buffer.store.pipeline import hold_scopes, release_scopes
from services.buffer.store.queries import StoredExperience
from services.buffer.store.replay import leave_pool, restore_withdrawn, withdraw
from services.buffer.store.reports import clear_sample_events
from services.buffer.store.segments import retired_segments
from services.buffer.store.stages import get_stage, list_unfinished, lock_stage
from services.buffer.store.training import open_versions
from trinity.errors import PreconditionFailed
from trinity.runtime.sql import Connection
from trinity.types import StageKey


async def exclude_experiences(
    connection: Connection, key: StageKey, rows: Sequence[StoredExperience], why: ChangeReason
) -> int:
    """Excludes samples from training, whatever the pipeline is doing with them.

    Samples in a batch stay there, enter no further batch, and keep the reason.
    """
    ids = [row.experience_id for row in rows]
    untrained = [row for row in rows if row.state in UNTRAINED]
    changed = [
        row.experience_id
        for row in rows
        if row.state in UNTRAINED
        or (row.state is ExperienceState.BATCHED and row.reason != why.reason)
    ]
    await record_change(connection, key, changed, Change.EXCLUDED, why)
    if not untrained:
        await lock_stage(connection, key)
        await withdraw(connection, key, ids, why.reason)
        return 0
    await revoke_claims(connection, key, {row.assignment_id for row in untrained})
    await lock_stage(connection, key)
    await withdraw(connection, key, ids, why.reason)
    num_excluded = await exclude(connection, key, untrained, why.reason)
    await release_scopes(connection, key, {row.assignment_id for row in untrained})
    # Excluded samples free credit for more work, and a batch may have waited for their groups.
    await notify(connection, *stage_topics(key))
    return num_excluded


def was_excluded(row: StoredExperience) -> bool:
    """Returns whether a person excluded it, from all batches or from further ones."""
    if row.state is ExperienceState.BATCHED:
        return row.reason != ""
    return row.state is ExperienceState.EXCLUDED


async def include_experiences(
    connection: Connection,
    key: StageKey,
    rows: Sequence[StoredExperience],
    *,
    why: ChangeReason | None,
) -> tuple[int, int]:
    """Includes samples again that were excluded; returns their number, and that of the others.

    Advantages belong to a group. A sample comes too late if the advantages of its group were
    computed without it, if the stage has ended, or if its content was retired. Samples in a batch
    become available to other runs again as long as their content is there. Without `why` they are
    only counted.
    """
    if why is not None:
        await revoke_claims(connection, key, {row.assignment_id for row in rows})
    stage = await lock_stage(connection, key)
    with_content = await _with_content(connection, stage, rows)
    batched_ids = [
        row.experience_id for row in with_content if row.state is ExperienceState.BATCHED
    ]
    found = await find_includable(connection, key, with_content) if stage.is_open else []
    num_found = len(found) + len(batched_ids)
    num_too_late = len(rows) - num_found
    if why is None or not num_found:
        return num_found, num_too_late
    changed = [*batched_ids, *(row.experience_id for row in found)]
    await record_change(connection, key, changed, Change.INCLUDED, why)
    num_included = await restore_withdrawn(connection, stage, batched_ids)
    num_included += await restore_excluded(connection, stage, found)
    raw_groups = {row.assignment_id for row in found if row.parent_id is None}
    await reopen_finished_scopes(connection, key, raw_groups)
    await hold_scopes(connection, key, raw_groups)
    await notify(connection, *stage_topics(key))
    return num_included, num_too_late


async def _with_content(
    connection: Connection, stage: Stage, rows: Sequence[StoredExperience]
) -> list[StoredExperience]:
    """Returns the rows whose content is still there."""
    retired = await retired_segments(connection, stage.key)
    return [row for row in rows if row.segment_id not in retired]


async def check_deletable(
    connection: Connection, key: StageKey, kind: AssignmentKind, rows: Sequence[StoredExperience]
) -> None:
    """Checks that no content is still needed.

    Raises: PreconditionFailed when the content of any of the samples may still be needed.
    """
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
    connection: Connection,
    key: StageKey,
    kind: AssignmentKind,
    rows: Sequence[StoredExperience],
    why: ChangeReason,
) -> tuple[int, int]:
    """Deletes the content of samples, whose records stay; returns their number and size in bytes.

    Raises: PreconditionFailed when it may still be needed.
    """
    present = [row for row in rows if row.state is not ExperienceState.DELETED]
    if not present:
        return 0, 0
    await revoke_claims(connection, key, {row.assignment_id for row in present})
    await lock_stage(connection, key)
    await check_deletable(connection, key, kind, present)
    ids = await mark_deleted(connection, key, present, why.reason)
    await record_change(
        connection, key, [row.experience_id for row in present], Change.DELETED, why
    )
    await leave_pool(connection, key, ids)
    await clear_sample_events(connection, key.tenant, ids)
    num_bytes = await delete_content(connection, key, present)
    await release_scopes(connection, key, {row.assignment_id for row in present})
    await notify(connection, *stage_topics(key))
    return len(present), num_bytes
