"""Statements that exclude, include or delete samples at a user's request, and the record of it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa

from services.buffer.domain.stage import OPEN_SCOPE, UNTRAINED, ExperienceState, ScopeState, Stage
from services.buffer.store.database import (
    SCOPES_TOPIC,
    UUIDS,
    columns_of,
    count_rows,
    id_in,
    in_stage,
    key_columns,
    notify,
    of_line,
    of_stage,
    one_of,
    stage_params,
    value_of,
)
from services.buffer.store.pipeline import update_scopes
from services.buffer.store.queries import StoredExperience
from services.buffer.store.schema import (
    NOW,
    batch_item,
    checkpoint,
    experience,
    pipeline_scope,
    sample_change,
)
from services.buffer.store.segments import payloads_of, retired_segments
from services.buffer.store.turns import turns_of
from trinity.runtime.sql import Connection
from trinity.types import FinishReason, StageKey

EXPERIENCE, SCOPE, SAMPLE_CHANGE = experience.c, pipeline_scope.c, sample_change.c
MAX_CHANGES = 100
"""Most changes of one sample in an answer; the newest ones."""
_GIVEN = ("tenant", "experiment_id", "stage", "what", "reason", "by")
_RECORD = sa.insert(sample_change).from_select(
    [*_GIVEN, "experience_id"],
    sa.select(
        *(sa.bindparam(name, type_=SAMPLE_CHANGE[name].type) for name in _GIVEN),
        sa.func.unnest(sa.bindparam("ids", type_=UUIDS)),
    ),
    include_defaults=False,
)
_LOAD = (
    sa.select(SAMPLE_CHANGE.what, SAMPLE_CHANGE.reason, SAMPLE_CHANGE.by, SAMPLE_CHANGE.at)
    .where(id_in(SAMPLE_CHANGE.experience_id), of_stage(sample_change))
    .order_by(SAMPLE_CHANGE.number.desc())
    .limit(MAX_CHANGES)
)
# The same rule as `Sample.why_not_compared`.
_IS_COMPARED = sa.and_(
    EXPERIENCE.finish_reason != FinishReason.ABORT,
    sa.or_(
        EXPERIENCE.reward.is_not(None), EXPERIENCE.finish_reason == FinishReason.PROMPT_TRUNCATED
    ),
)


class Change(StrEnum):
    """An act of a person on a sample."""

    EXCLUDED = "excluded"
    INCLUDED = "included"
    DELETED = "deleted"
    REWARDED = "rewarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeReason:
    """The reason for a change, and the person."""

    reason: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChange:
    """A stored change of one sample."""

    what: str
    reason: str
    by: str
    at: datetime


async def record_change(
    connection: Connection, key: StageKey, ids: Iterable[str], what: Change, why: ChangeReason
) -> None:
    """Records that a person did the same to these samples."""
    values = {**key_columns(key), **columns_of(why), "ids": list(ids), "what": what.value}
    await connection.execute(_RECORD, values)


async def load_sample_changes(
    connection: Connection, key: StageKey, experience_id: str
) -> Sequence[RecordedChange]:
    """Returns the changes of a sample, latest first."""
    rows = await connection.fetch(_LOAD, stage_params(key, ids=[experience_id]))
    return [value_of(RecordedChange, row) for row in rows]


async def revoke_claims(
    connection: Connection, key: StageKey, assignment_ids: Iterable[str]
) -> None:
    """Revokes claims, so that the pipeline starts over on groups that it has not finished.

    Call it before locking the stage: the pipeline takes the locks in this order.
    """
    own = sa.and_(_scopes_of(key, assignment_ids), one_of(SCOPE.state, OPEN_SCOPE))
    await connection.execute(sa.select(SCOPE.assignment_id).where(own).with_for_update())
    await connection.execute(
        sa.update(pipeline_scope)
        .where(own, SCOPE.state == ScopeState.CLAIMED)
        .values(
            state=ScopeState.OPEN, claim_token=None, claimed_until=None, attempts=SCOPE.attempts - 1
        )
    )
    await notify(connection, SCOPES_TOPIC)


def _scopes_of(key: StageKey, assignment_ids: Iterable[str]) -> sa.ColumnElement[bool]:
    """Condition: scopes of these groups."""
    return sa.and_(in_stage(pipeline_scope, key), id_in(SCOPE.assignment_id, assignment_ids))


async def exclude(
    connection: Connection, key: StageKey, rows: Sequence[StoredExperience], reason: str
) -> int:
    """Excludes samples and their revisions from batches; returns the number of rows."""
    ids = [row.experience_id for row in rows]
    statement = (
        sa.update(experience)
        .where(
            of_stage(experience, key),
            id_in(EXPERIENCE.assignment_id, {row.assignment_id for row in rows}),
            sa.or_(id_in(EXPERIENCE.experience_id, ids), id_in(EXPERIENCE.parent_id, ids)),
            one_of(EXPERIENCE.state, UNTRAINED),
        )
        .values(state=ExperienceState.EXCLUDED, reason=reason)
        .returning(EXPERIENCE.experience_id)
    )
    return len(await connection.fetch(statement))


async def needed_steps(
    connection: Connection, stage: Stage, rows: Sequence[StoredExperience]
) -> dict[int, int]:
    """Counts uses of these contents in batches that may be trained again, by train step."""
    c = batch_item.c
    siblings = sa.select(EXPERIENCE.experience_id).where(_same_content(stage.key, rows))
    items = sa.select(c.step, sa.func.count().label("number")).where(
        of_line(batch_item, stage),
        c.step > await oldest_kept_step(connection, stage),
        c.experience_id.in_(siblings),
    )
    found = await connection.fetch(items.group_by(c.step).order_by(c.step))
    return {row.step: row.number for row in found}


async def oldest_kept_step(connection: Connection, stage: Stage) -> int:
    """Returns the step of the oldest kept checkpoint of the line; 0 without one."""
    c = checkpoint.c
    statement = sa.select(sa.func.min(c.step)).where(of_line(checkpoint, stage), c.is_kept)
    return await connection.fetch_value(statement) or 0


async def count_deleted(
    connection: Connection, stage: Stage, first_step: int, last_step: int
) -> int:
    """Counts deleted samples in the batches of these steps."""
    c = batch_item.c
    ids = sa.select(c.experience_id).where(
        of_line(batch_item, stage),
        c.step.between(first_step, last_step),
        c.experience_id.is_not(None),
    )
    is_own = sa.and_(in_stage(experience, stage.samples_key), EXPERIENCE.experience_id.in_(ids))
    return await count_rows(
        connection, experience, is_own, EXPERIENCE.state == ExperienceState.DELETED
    )


async def mark_deleted(
    connection: Connection, key: StageKey, rows: Sequence[StoredExperience], reason: str
) -> list[str]:
    """Marks these samples, and all with the same content, as deleted; returns their ids."""
    statement = (
        sa.update(experience)
        .where(_same_content(key, rows), EXPERIENCE.state != ExperienceState.DERIVED)
        .values(state=ExperienceState.DELETED, reason=reason)
        .returning(EXPERIENCE.experience_id)
    )
    return await connection.fetch_column(statement)


async def delete_content(
    connection: Connection, key: StageKey, rows: Sequence[StoredExperience]
) -> int:
    """Deletes the contents of these samples and of their runs' turns; returns their size in bytes.

    The rows stay.

    Requires the stage's lock, so that no segment is retired in the meantime.
    """
    by_segment: dict[int, list[str]] = defaultdict(list)
    retired = await retired_segments(connection, key)
    runs = {(row.assignment_id, row.cursor.run) for row in rows}
    places = [(row.segment_id, row.payload_id) for row in rows]
    places += [(own.segment_id, own.turn_id) for own in await turns_of(connection, key, runs)]
    for segment_id, payload_id in places:
        if segment_id not in retired:
            by_segment[segment_id].append(payload_id)
    num_bytes = 0
    for segment_id, ids in by_segment.items():
        table = payloads_of(segment_id)
        statement = (
            sa.delete(table)
            .where(
                in_stage(table, key),
                table.c.segment_id == segment_id,
                id_in(table.c.payload_id, ids),
            )
            .returning(sa.func.octet_length(table.c.body))
        )
        num_bytes += sum(await connection.fetch_column(statement))
    return num_bytes


def _same_content(key: StageKey, rows: Sequence[StoredExperience]) -> sa.ColumnElement[bool]:
    """Condition: samples with the content of these; a sample and its revisions share one."""
    return sa.and_(
        of_stage(experience, key),
        id_in(EXPERIENCE.assignment_id, {row.assignment_id for row in rows}),
        id_in(EXPERIENCE.payload_id, {row.payload_id for row in rows}),
    )


async def find_includable(
    connection: Connection, key: StageKey, rows: Sequence[StoredExperience]
) -> list[StoredExperience]:
    """Returns excluded samples with an advantage, or whose group is not processed without them."""
    raw = {row.assignment_id for row in rows if row.parent_id is None}
    processed = await _processed_groups(connection, key, raw) if raw else set()
    return [
        row
        for row in rows
        if row.state is ExperienceState.EXCLUDED
        and (row.parent_id is not None or row.assignment_id not in processed)
    ]


async def _processed_groups(
    connection: Connection, key: StageKey, assignment_ids: Iterable[str]
) -> set[str]:
    """Returns the groups that have advantages, were filtered as a whole, or were cut."""
    samples = sa.select(EXPERIENCE.assignment_id, EXPERIENCE.revision).where(
        of_stage(experience, key),
        id_in(EXPERIENCE.assignment_id, assignment_ids),
        sa.or_(
            EXPERIENCE.revision > 0,
            sa.and_(EXPERIENCE.state == ExperienceState.FILTERED, _IS_COMPARED),
        ),
    )
    rows = await connection.fetch(samples)
    filtered = {row.assignment_id for row in rows if row.revision == 0}
    scopes = sa.select(SCOPE.assignment_id, SCOPE.error).where(
        _scopes_of(key, assignment_ids), SCOPE.state == ScopeState.DONE
    )
    done = await connection.fetch(scopes)
    shaped = {row.assignment_id for row in rows if row.revision > 0}
    left_out = {row.assignment_id for row in done if row.assignment_id in filtered}
    # A scope that the pipeline finished has no error; that of a cut task has the reason.
    left_behind = {row.assignment_id for row in done if row.error}
    return shaped | left_out | left_behind


async def restore_excluded(
    connection: Connection, stage: Stage, rows: Sequence[StoredExperience]
) -> int:
    """Restores the state that the samples would have; returns their number."""
    awaits = stage.plan.config.buffer.await_feedback
    no_reward = sa.and_(EXPERIENCE.reward.is_(None), sa.literal(awaits))
    state = sa.case(
        (EXPERIENCE.parent_id.is_not(None), ExperienceState.READY.value),
        (no_reward, ExperienceState.AWAITING.value),
        else_=ExperienceState.RAW.value,
    )
    statement = (
        sa.update(experience)
        .where(
            in_stage(experience, stage.key),
            id_in(EXPERIENCE.assignment_id, {row.assignment_id for row in rows}),
            id_in(EXPERIENCE.experience_id, [row.experience_id for row in rows]),
            one_of(EXPERIENCE.state, [ExperienceState.EXCLUDED]),
        )
        .values(state=state, reason="")
        .returning(EXPERIENCE.experience_id)
    )
    return len(await connection.fetch(statement))


async def reopen_finished_scopes(
    connection: Connection, key: StageKey, assignment_ids: Iterable[str]
) -> None:
    """Lets the pipeline process groups again that it had finished without these samples."""
    is_finished = one_of(SCOPE.state, [ScopeState.DONE, ScopeState.DEAD])
    new = {"state": ScopeState.OPEN, "attempts": 0, "error": "", "opened_at": NOW}
    await update_scopes(
        connection, key, assignment_ids, is_finished, **new, metrics={}, batched_step=None
    )
    await notify(connection, SCOPES_TOPIC)
