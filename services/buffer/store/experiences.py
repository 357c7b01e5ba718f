"""Statements on experiences and their payloads."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from services.buffer.domain.evaluation import RunScore
from services.buffer.domain.group import DerivedRow, ScoredSample
from services.buffer.domain.results import Result
from services.buffer.domain.stage import AssignmentKind, ExperienceState
from services.buffer.store.database import (
    BOOLEANS,
    FLOATS,
    PREFIX,
    UUIDS,
    columns_of,
    decode_numbers,
    encode_numbers,
    id_in,
    in_stage,
    insert_bodies,
    insert_rows,
    key_columns,
    of_stage,
    one_of,
    seconds_from_now,
    stage_params,
    value_of,
)
from services.buffer.store.runs import won_runs
from services.buffer.store.schema import assignment, experience, segment
from services.buffer.store.segments import payloads_of, unavailable_if_dropped
from trinity.api.v1 import experience_pb2 as pb
from trinity.errors import PreconditionFailed
from trinity.runtime.sql import Connection, Row
from trinity.runtime.uuids import name_uuid
from trinity.types import StageKey

DERIVED_NAMESPACE = uuid.UUID("5b1e0d0e-7a6c-5c3a-9a3c-3f6f4f0b9d21")
CODEC = "trinity.api.v1.Experience"
SCHEMA_VERSION = 1
EXPERIENCE = experience.c
_RAW_SAMPLES = (
    sa.select(
        EXPERIENCE.assignment_id,
        EXPERIENCE.experience_id,
        EXPERIENCE.run,
        EXPERIENCE.reward,
        EXPERIENCE.finish_reason,
        EXPERIENCE.response_length,
    )
    .where(
        of_stage(experience),
        id_in(EXPERIENCE.assignment_id),
        sa.func.concat(EXPERIENCE.state)
        == ExperienceState.RAW,  # keeps the planner off the index by state
    )
    .order_by(EXPERIENCE.run, EXPERIENCE.step, EXPERIENCE.suffix)
)
NOT_COPIED = {"ready_number", "created_at", "reason"}
CHANGED = {
    "experience_id",
    "parent_id",
    "revision",
    "advantage",
    "state",
    "shaped_reward",
    "is_masked",
}
COPIED = [column for column in experience.c if column.name not in NOT_COPIED | CHANGED]
_NEW = (
    sa.func.unnest(
        sa.bindparam("ids", type_=UUIDS),
        sa.bindparam("parents", type_=UUIDS),
        sa.bindparam("advantages", type_=FLOATS),
        sa.bindparam("rewards", type_=FLOATS),
        sa.bindparam("masked", type_=BOOLEANS),
    )
    .table_valued(
        "experience_id",
        "parent_id",
        "advantage",
        "shaped_reward",
        "is_masked",
        with_ordinality="place",
        name="new",
    )
    .render_derived()
)
# A lateral lookup per row: a join might compare every new row with every parent.
_PARENT = (
    sa.select(*COPIED, EXPERIENCE.revision)
    .where(of_stage(experience), EXPERIENCE.experience_id == _NEW.c.parent_id)
    .limit(1)
    .lateral("parent")
)
_DERIVED_VALUES = {
    "experience_id": _NEW.c.experience_id,
    "parent_id": _NEW.c.parent_id,
    "revision": _PARENT.c.revision + 1,
    "advantage": _NEW.c.advantage,
    "state": sa.literal(ExperienceState.READY.value),
    "shaped_reward": _NEW.c.shaped_reward,
    "is_masked": _NEW.c.is_masked,
}
_INSERT_DERIVED = sa.insert(experience).from_select(
    [*(column.name for column in COPIED), *_DERIVED_VALUES],
    sa.select(*(_PARENT.c[column.name] for column in COPIED), *_DERIVED_VALUES.values())
    .join_from(_NEW, _PARENT, sa.true())
    .order_by(_NEW.c.place),
)
_SET_STATES = (
    sa.update(experience)
    .where(of_stage(experience), id_in(EXPERIENCE.experience_id))
    .values(state=sa.bindparam("new_state"), reason=sa.bindparam("new_reason"))
)
PLACE = (
    EXPERIENCE.segment_id,
    EXPERIENCE.payload_id,
    EXPERIENCE.shaped_reward,
    EXPERIENCE.is_masked,
)
"""Columns that locate the content of an experience, and its changes by operators."""


async def insert_experiences(
    connection: Connection,
    key: StageKey,
    segment_id: int,
    stored: Sequence[tuple[Result, ExperienceState]],
) -> None:
    """Stores the samples of results with their wire bytes."""
    rows, payloads = [], []
    for result, state in stored:
        for sample in result.experiences:
            own = {**key_columns(key), "segment_id": segment_id, "payload_id": sample.experience_id}
            columns = {**own, **columns_of(sample), "metrics": encode_numbers(sample.metrics)}
            body, _ = columns.pop("body"), columns.pop("media")
            payloads.append({**own, "codec": CODEC, "schema_version": SCHEMA_VERSION, "body": body})
            rows.append(
                {
                    **columns,
                    "assignment_id": result.assignment_id,
                    "explore_step": result.explore_step,
                    "position": result.position,
                    "run": result.run,
                    "attempt": result.attempt,
                    "state": state,
                }
            )
    await insert_bodies(connection, payloads_of(segment_id), payloads)
    await insert_rows(connection, experience, rows)


async def load_raw_samples(
    connection: Connection, key: StageKey, assignment_ids: Sequence[str]
) -> dict[str, list[ScoredSample]]:
    """Returns raw samples by assignment, in order: those that the pipeline has not processed."""
    samples: dict[str, list[ScoredSample]] = {own_id: [] for own_id in assignment_ids}
    for row in await connection.fetch(_RAW_SAMPLES, stage_params(key, ids=assignment_ids)):
        samples[row.assignment_id].append(value_of(ScoredSample, row))
    return samples


def derived_id(parent_id: str, operator: str, ordinal: int) -> str:
    """Returns the deterministic id of an output of an operator."""
    return name_uuid(DERIVED_NAMESPACE, f"{parent_id}/{operator}/{ordinal}")


async def insert_derived(
    connection: Connection, key: StageKey, derived: Sequence[tuple[str, DerivedRow]]
) -> None:
    """Inserts ready revisions of raw samples, in the order given; marks the parents as derived.

    Each is given with the operator that it comes from.
    """
    if not derived:
        return
    rows = [row for _, row in derived]
    parents = [row.parent_id for row in rows]
    values = stage_params(
        key,
        ids=[derived_id(row.parent_id, operator, row.ordinal) for operator, row in derived],
        parents=parents,
        advantages=[row.advantage for row in rows],
        rewards=[row.reward for row in rows],
        masked=[row.is_masked for row in rows],
    )
    await connection.execute(_INSERT_DERIVED, values)
    await set_states(connection, key, parents, ExperienceState.DERIVED)


async def set_states(
    connection: Connection,
    key: StageKey,
    ids: Sequence[str],
    state: ExperienceState,
    reason: str = "",
) -> None:
    """Moves experiences to a state, with the reason if they are left out."""
    if ids:
        values = stage_params(key, ids=ids, new_state=state, new_reason=reason)
        await connection.execute(_SET_STATES, values)


async def store_reward(
    connection: Connection,
    key: StageKey,
    experience_id: str,
    body: bytes,
    *,
    reward: float,
    reward_parts: Mapping[str, float],
) -> None:
    """Stores the reward of a sample, and replaces its content by the one with the reward."""
    statement = (
        sa.update(experience)
        .where(of_stage(experience, key), EXPERIENCE.experience_id == experience_id)
        .values(
            state=ExperienceState.RAW,
            reward=reward,
            metrics=EXPERIENCE.metrics.op("||")(sa.cast(encode_numbers(reward_parts), JSONB)),
        )
        .returning(EXPERIENCE.segment_id, EXPERIENCE.payload_id)
    )
    segment_id, payload_id = await connection.fetch_one(statement)
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


async def filter_raw(
    connection: Connection, key: StageKey, assignment_ids: Sequence[str], reason: str
) -> None:
    """Filters every raw sample of groups that the pipeline could not process."""
    await connection.execute(
        sa.update(experience)
        .where(
            of_stage(experience, key),
            id_in(EXPERIENCE.assignment_id, assignment_ids),
            EXPERIENCE.state == ExperienceState.RAW,
        )
        .values(state=ExperienceState.FILTERED, reason=reason)
    )


async def has_batched(connection: Connection, key: StageKey, explore_step: int) -> bool:
    """Returns true if a batch has rows of this explore step."""
    drawn = assignment.c
    batched = sa.exists().where(
        in_stage(assignment, key),
        drawn.kind == AssignmentKind.TRAIN,
        drawn.explore_step == explore_step,
        EXPERIENCE.assignment_id == drawn.assignment_id,
        in_stage(experience, key),
        one_of(EXPERIENCE.state, [ExperienceState.BATCHED]),
    )
    return bool(await connection.fetch_value(sa.select(batched)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCount:
    """Samples that are in one state for one reason."""

    state: ExperienceState
    reason: str
    number: int


async def count_by_reason(connection: Connection, key: StageKey) -> Sequence[StateCount]:
    """Counts samples by state and reason, highest count first."""
    number = sa.func.count()
    statement = (
        sa.select(EXPERIENCE.state, EXPERIENCE.reason, number.label("number"))
        .where(in_stage(experience, key))
        .group_by(EXPERIENCE.state, EXPERIENCE.reason)
        .order_by(number.desc(), EXPERIENCE.state, EXPERIENCE.reason)
    )
    return [
        value_of(StateCount, row, state=ExperienceState(row.state))
        for row in await connection.fetch(statement)
    ]


async def run_scores(
    connection: Connection, key: StageKey, assignment_ids: Sequence[str]
) -> list[RunScore]:
    """Returns the metrics of every finished run: its own, and the means over its samples."""
    statement = (
        sa.select(EXPERIENCE.assignment_id, EXPERIENCE.run, EXPERIENCE.reward, EXPERIENCE.metrics)
        .where(
            of_stage(experience, key),
            id_in(EXPERIENCE.assignment_id, assignment_ids),
            EXPERIENCE.state == ExperienceState.EVAL,
        )
        .order_by(EXPERIENCE.explore_step, EXPERIENCE.position, EXPERIENCE.run, EXPERIENCE.step)
    )
    values: dict[tuple[str, int], dict[str, list[float]]] = {}
    for row in await connection.fetch(statement):
        own = values.setdefault((row.assignment_id, row.run), {})
        for name, value in decode_numbers(row.metrics).items():
            own.setdefault(name, []).append(value)
        if row.reward is not None:
            own.setdefault("reward", []).append(row.reward)
    for place, run in (await won_runs(connection, key, assignment_ids)).items():
        values.setdefault(place, {}).update({name: [value] for name, value in run.metrics.items()})
    return [
        RunScore(
            assignment_id=place[0],
            values={name: sum(listed) / len(listed) for name, listed in own.items()},
        )
        for place, own in values.items()
    ]


def revised(body: bytes, *, reward: float | None, is_masked: bool) -> bytes:
    """Returns the wire bytes with the new reward, if any, and with all tokens masked, if asked."""
    if reward is None and not is_masked:
        return body
    message = pb.Experience.FromString(body)
    if reward is not None:
        message.reward = reward
    if is_masked:
        pair = (message.pair.chosen, message.pair.rejected)
        for sequence in [message.sequence] if message.HasField("sequence") else pair:
            sequence.action_mask.data = bytes(len(sequence.action_mask.data))
    return message.SerializeToString(deterministic=True)


def has_content(prefix: str = PREFIX) -> sa.ColumnElement[bool]:
    """Condition: the content is in a segment that is not retired; it may still be deleted."""
    retired = sa.select(segment.c.segment_id).where(
        in_stage(segment, prefix=prefix), segment.c.retired_at.is_not(None)
    )
    return sa.and_(of_stage(experience, prefix=prefix), EXPERIENCE.segment_id.not_in(retired))


_PLACES = sa.select(EXPERIENCE.experience_id, *PLACE).where(
    id_in(EXPERIENCE.experience_id), has_content()
)


async def load_bodies(connection: Connection, key: StageKey, ids: Sequence[str]) -> list[bytes]:
    """Returns wire bytes of experiences as operators left them, in the order of `ids`.

    Raises: PreconditionFailed when some of them are gone.
    """
    return in_order_of(ids, await find_bodies(connection, key, ids), key)


def in_order_of(ids: Sequence[str], found: Mapping[str, bytes], key: StageKey) -> list[bytes]:
    """Returns the contents of these experiences, in the order of `ids`.

    Raises: PreconditionFailed when some of them are gone.
    """
    if missing := sum(own_id not in found for own_id in ids):
        raise PreconditionFailed(
            f"the contents of {missing} samples of stage {key.stage} are gone: they were deleted, "
            "or removed as older than all that is kept (`buffer.keep_steps`)"
        )
    return [found[own_id] for own_id in ids]


async def find_bodies(
    connection: Connection, key: StageKey, ids: Sequence[str]
) -> dict[str, bytes]:
    """Returns wire bytes by id, as operators left them, of experiences that still have them."""
    return await bodies_at(
        connection, key, await connection.fetch(_PLACES, stage_params(key, ids=ids))
    )


async def bodies_at(connection: Connection, key: StageKey, rows: Sequence[Row]) -> dict[str, bytes]:
    """Does the same for rows with the `PLACE` columns."""
    bodies: dict[str, bytes] = {}
    for segment_id in {row.segment_id for row in rows}:
        own = list({row.payload_id for row in rows if row.segment_id == segment_id})
        values = stage_params(key, ids=own, segment=segment_id)
        with unavailable_if_dropped():
            found = await connection.fetch_binary(_bodies_in(segment_id), values)
        bodies |= {str(payload_id): body for payload_id, body in found}
    return {
        row.experience_id: revised(
            bodies[row.payload_id], reward=row.shaped_reward, is_masked=row.is_masked
        )
        for row in rows
        if row.payload_id in bodies
    }


@lru_cache
def _bodies_in(segment_id: int) -> sa.Select[tuple[str, bytes]]:
    table = payloads_of(segment_id)
    return sa.select(table.c.payload_id, table.c.body).where(
        in_stage(table), table.c.segment_id == sa.bindparam("segment"), id_in(table.c.payload_id)
    )
