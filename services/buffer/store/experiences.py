"""Statements on experiences and their payloads."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.batch_metrics import MeasuredRow
from services.buffer.domain.evaluation import RunScore
from services.buffer.domain.group import Sample
from services.buffer.domain.results import Result
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import AttemptState, ExperienceState
from services.buffer.revision import revised
from services.buffer.store.copying import copy_rows
from services.buffer.store.database import (
    among,
    among_given,
    decode_numbers,
    encode_numbers,
    given,
    in_given_stage,
    in_stage,
    key_columns,
    one_of,
)
from services.buffer.store.fetching import fetch_rows
from services.buffer.store.tables import experience, payload, run_attempt
from trinity.errors import PreconditionFailed
from trinity.types import StageKey

CODEC = "trinity.api.v1.Experience"
SCHEMA_VERSION = 1
C = experience.c
Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyRow:
    """A row that can be batched."""

    experience_id: str
    advantage: float
    measured: MeasuredRow


async def insert_experiences(
    connection: AsyncConnection,
    key: StageKey,
    segment_id: int,
    stored: Sequence[tuple[Result, ExperienceState]],
) -> int:
    """Store the samples of results with their wire bytes; answers how many."""
    rows, payloads = [], []
    for result, state in stored:
        for one in result.experiences:
            own = {**key_columns(key), "segment_id": segment_id, "payload_id": one.experience_id}
            payloads.append(
                {**own, "codec": CODEC, "schema_version": SCHEMA_VERSION, "body": one.body}
            )
            rows.append(
                {
                    **own,
                    "experience_id": one.experience_id,
                    "assignment_id": result.assignment_id,
                    "explore_step": result.explore_step,
                    "position": result.position,
                    "run": result.run,
                    "attempt": result.attempt,
                    "step": one.step,
                    "suffix": one.suffix,
                    "state": state,
                    "reward": one.reward,
                    "version_min": one.version_min,
                    "version_max": one.version_max,
                    "num_tokens": one.num_tokens,
                    "response_length": one.response_length,
                    "finish_reason": one.finish_reason,
                    "metrics": encode_numbers(one.metrics),
                    "content_hash": one.content_hash,
                }
            )
    await copy_rows(connection, payload, payloads)
    await copy_rows(connection, experience, rows)
    return len(rows)


_RAW_SAMPLES = (
    sa.select(C.assignment_id, C.experience_id, C.run, C.reward, C.finish_reason, C.response_length)
    .where(
        in_given_stage(experience),
        among_given(C.assignment_id),
        one_of(C.state, [ExperienceState.RAW]),
    )
    .order_by(C.run, C.step, C.suffix)
)


async def load_raw_samples(
    connection: AsyncConnection, key: StageKey, assignment_ids: Sequence[str]
) -> dict[str, list[Sample]]:
    """The samples of groups that the pipeline has not shaped yet, in order, by assignment."""
    samples: dict[str, list[Sample]] = {one: [] for one in assignment_ids}
    for row in await connection.execute(_RAW_SAMPLES, given(key, ids=assignment_ids)):
        samples[row.assignment_id].append(
            Sample(
                experience_id=row.experience_id,
                run=row.run,
                reward=row.reward,
                finish_reason=row.finish_reason,
                response_length=row.response_length,
            )
        )
    return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A new revision of an experience."""

    experience_id: str
    parent_id: str
    advantage: float
    reward: float | None = None
    """Where an operator has changed it."""
    is_masked: bool = False


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
        sa.bindparam("ids", type_=ARRAY(C.experience_id.type)),
        sa.bindparam("parents", type_=ARRAY(C.experience_id.type)),
        sa.bindparam("advantages", type_=ARRAY(sa.Float)),
        sa.bindparam("rewards", type_=ARRAY(sa.Float)),
        sa.bindparam("masked", type_=ARRAY(sa.Boolean)),
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
_DERIVED_VALUES = {
    "experience_id": _NEW.c.experience_id,
    "parent_id": _NEW.c.parent_id,
    "revision": C.revision + 1,
    "advantage": _NEW.c.advantage,
    "state": sa.literal(ExperienceState.READY.value),
    "shaped_reward": _NEW.c.shaped_reward,
    "is_masked": _NEW.c.is_masked,
}
_INSERT_DERIVED = sa.insert(experience).from_select(
    [*(column.name for column in COPIED), *_DERIVED_VALUES],
    sa.select(*COPIED, *_DERIVED_VALUES.values())
    .join_from(_NEW, experience, C.experience_id == _NEW.c.parent_id)
    .where(in_given_stage(experience), among_given(C.experience_id, "parents"))
    .order_by(_NEW.c.place),
)


async def insert_derived(
    connection: AsyncConnection, key: StageKey, derived: Sequence[Derived]
) -> None:
    """Make ready rows of raw ones, in the order given; the parents stay as they came."""
    if not derived:
        return
    parents = [one.parent_id for one in derived]
    values = given(
        key,
        ids=[one.experience_id for one in derived],
        parents=parents,
        advantages=[one.advantage for one in derived],
        rewards=[one.reward for one in derived],
        masked=[one.is_masked for one in derived],
    )
    await connection.execute(_INSERT_DERIVED, values)
    await set_states(connection, key, parents, ExperienceState.DERIVED)


_SET_STATES = (
    sa.update(experience)
    .where(in_given_stage(experience), among_given(C.experience_id))
    .values(state=sa.bindparam("new_state"), reason=sa.bindparam("new_reason"))
)


async def set_states(
    connection: AsyncConnection,
    key: StageKey,
    ids: Sequence[str],
    state: ExperienceState,
    reason: str = "",
) -> None:
    """Move experiences on, with the reason if they leave."""
    if ids:
        values = given(key, ids=ids, new_state=state, new_reason=reason)
        await connection.execute(_SET_STATES, values)


async def filter_raw(
    connection: AsyncConnection, key: StageKey, assignment_ids: Sequence[str], reason: str
) -> None:
    """Leave out every sample of groups that the pipeline could not shape."""
    await connection.execute(
        sa.update(experience)
        .where(
            in_stage(experience, key),
            among(experience.c.assignment_id, assignment_ids),
            experience.c.state == ExperienceState.RAW,
        )
        .values(state=ExperienceState.FILTERED, reason=reason)
    )


def state_count(key: StageKey, state: ExperienceState) -> sa.Select[int]:
    """How many experiences of a stage are in this state."""
    return (
        sa.select(sa.func.count())
        .select_from(experience)
        .where(in_stage(experience, key), one_of(experience.c.state, [state]))
    )


async def count_state(connection: AsyncConnection, key: StageKey, state: ExperienceState) -> int:
    """Experiences of a stage in this state."""
    return (await connection.execute(state_count(key, state))).scalar_one()


def is_ready(key: StageKey, before: Place | None) -> sa.ColumnElement[bool]:
    """Rows that can be batched; with `before` those of groups up to it."""
    c = experience.c
    ready = sa.and_(in_stage(experience, key), one_of(c.state, [ExperienceState.READY]))
    if before is None:
        return ready
    return sa.and_(ready, sa.tuple_(c.explore_step, c.position) < before)


async def count_ready(connection: AsyncConnection, stage: Stage, before: Place | None) -> int:
    """Rows that can be batched; where their order is fixed, those of groups up to `before`."""
    counted = sa.select(sa.func.count()).select_from(experience)
    statement = counted.where(is_ready(stage.key, before))
    return (await connection.execute(statement)).scalar_one()


async def place_of_fresh(
    connection: AsyncConnection, stage: Stage, number: int, *, oldest: int, before: Place | None
) -> Place | None:
    """Place of the `number`-th ready row by order whose weights are `oldest` or newer."""
    c = experience.c
    statement = (
        sa.select(c.explore_step, c.position)
        .where(is_ready(stage.key, before), sa.func.coalesce(c.version_min, oldest) >= oldest)
        .order_by(c.explore_step, c.position)
        .offset(number - 1)
        .limit(1)
    )
    row = (await connection.execute(statement)).first()
    return None if row is None else (row.explore_step, row.position)


async def filter_stale(
    connection: AsyncConnection,
    stage: Stage,
    *,
    oldest: int,
    before: Place | None,
    up_to: Place | None,
    reason: str,
) -> int:
    """Leave out ready rows with weights older than `oldest`; answers how many.

    Only those of groups up to `before`, and of none after `up_to`.
    """
    c = experience.c
    stale = sa.and_(is_ready(stage.key, before), c.version_min < oldest)
    if up_to is not None:
        stale = sa.and_(stale, sa.tuple_(c.explore_step, c.position) <= up_to)
    left_out = {"state": ExperienceState.FILTERED, "reason": reason}
    statement = sa.update(experience).where(stale).values(left_out).returning(c.run)
    return len((await connection.execute(statement)).all())


_READY = [
    *(C[name] for name in ("experience_id", "assignment_id", "explore_step", "position", "run")),
    *(C[name] for name in ("advantage", "reward", "response_length", "version_min", "metrics")),
]


async def ready_rows(
    connection: AsyncConnection, stage: Stage, *, limit: int, before: Place | None
) -> list[ReadyRow]:
    """The next rows to batch: in order of the rollouts up to `before`, or as they became ready."""
    c = experience.c
    places = (c.explore_step, c.position, c.run, c.step, c.suffix)
    order = places if stage.is_ordered else (c.ready_number,)
    statement = sa.select(*_READY).where(is_ready(stage.key, before)).order_by(*order)
    return await _measured(connection, stage.key, await connection.execute(statement.limit(limit)))


async def rows_of(connection: AsyncConnection, key: StageKey, ids: Sequence[str]) -> list[ReadyRow]:
    """Rows to batch, in the order of `ids`."""
    statement = sa.select(*_READY).where(in_stage(experience, key), among(C.experience_id, ids))
    rows = await _measured(connection, key, await connection.execute(statement))
    found = {row.experience_id: row for row in rows}
    return [found[one] for one in ids]


async def _measured(
    connection: AsyncConnection, key: StageKey, found: Iterable[sa.Row[Any]]
) -> list[ReadyRow]:
    rows = list(found)
    run_metrics = await won_metrics(connection, key, {row.assignment_id for row in rows})
    return [
        ReadyRow(
            experience_id=row.experience_id,
            advantage=row.advantage,
            measured=MeasuredRow(
                explore_step=row.explore_step,
                position=row.position,
                run=row.run,
                reward=row.reward,
                response_length=row.response_length,
                version_min=row.version_min,
                metrics=decode_numbers(row.metrics),
                run_metrics=run_metrics.get((row.assignment_id, row.run), {}),
            ),
        )
        for row in rows
    ]


_WON_METRICS = (
    sa.select(run_attempt.c.assignment_id, run_attempt.c.run, run_attempt.c.metrics)
    .where(
        in_given_stage(run_attempt),
        among_given(run_attempt.c.assignment_id),
        one_of(run_attempt.c.state, [AttemptState.WON]),
    )
    .order_by(run_attempt.c.assignment_id, run_attempt.c.run)
)


async def won_metrics(
    connection: AsyncConnection, key: StageKey, assignment_ids: Iterable[str]
) -> dict[tuple[str, int], dict[str, float]]:
    """Metrics of the attempts that won, by assignment and run."""
    rows = await connection.execute(_WON_METRICS, given(key, ids=list(assignment_ids)))
    return {(row.assignment_id, row.run): decode_numbers(row.metrics) for row in rows}


_PLACES_OF_PAYLOADS = sa.select(
    C.experience_id, C.segment_id, C.payload_id, C.shaped_reward, C.is_masked
).where(in_given_stage(experience), among_given(C.experience_id))
_BODIES = sa.select(payload.c.payload_id, payload.c.body).where(
    in_given_stage(payload),
    payload.c.segment_id == sa.bindparam("segment"),
    among_given(payload.c.payload_id),
)


async def load_bodies(
    connection: AsyncConnection, key: StageKey, ids: Sequence[str]
) -> list[bytes]:
    """Wire bytes of experiences as operators left them, in the order of `ids`.

    Raises: PreconditionFailed when some of them are gone.
    """
    found = await find_bodies(connection, key, ids)
    if missing := sum(one not in found for one in ids):
        raise PreconditionFailed(
            f"the contents of {missing} samples of stage {key.stage} are gone: they were deleted, "
            "or removed as older than all that is kept (`buffer.keep_steps`)"
        )
    return [found[one] for one in ids]


async def find_bodies(
    connection: AsyncConnection, key: StageKey, ids: Sequence[str]
) -> dict[str, bytes]:
    """Wire bytes of those experiences that still have them, by id, as operators left them."""
    rows: list[sa.Row[Any]] = list(
        await connection.execute(_PLACES_OF_PAYLOADS, given(key, ids=ids))
    )
    bodies: dict[str, bytes] = {}
    for segment_id in {row.segment_id for row in rows}:
        own = list({row.payload_id for row in rows if row.segment_id == segment_id})
        values = given(key, ids=own, segment=segment_id)
        for payload_id, body in await fetch_rows(connection, _BODIES, values):
            bodies[str(payload_id)] = body
    return {
        row.experience_id: _revised(bodies[row.payload_id], row)
        for row in rows
        if row.payload_id in bodies
    }


def _revised(body: bytes, row: sa.Row[Any]) -> bytes:
    return revised(body, reward=row.shaped_reward, is_masked=row.is_masked)


async def run_scores(
    connection: AsyncConnection, key: StageKey, assignment_ids: Sequence[str]
) -> list[RunScore]:
    """The numbers of every finished run of an evaluation, a run's own and those of its samples."""
    c = experience.c
    statement = (
        sa.select(c.assignment_id, c.run, c.reward, c.metrics)
        .where(
            in_stage(experience, key),
            among(c.assignment_id, assignment_ids),
            c.state == ExperienceState.EVAL,
        )
        .order_by(c.explore_step, c.position, c.run, c.step)
    )
    values: dict[tuple[str, int], dict[str, list[float]]] = {}
    for row in await connection.execute(statement):
        own = values.setdefault((row.assignment_id, row.run), {})
        for name, value in decode_numbers(row.metrics).items():
            own.setdefault(name, []).append(value)
        if row.reward is not None:
            own.setdefault("reward", []).append(row.reward)
    for place, metrics in (await won_metrics(connection, key, assignment_ids)).items():
        values.setdefault(place, {}).update({name: [one] for name, one in metrics.items()})
    return [
        RunScore(
            assignment_id=place[0],
            values={name: sum(listed) / len(listed) for name, listed in own.items()},
        )
        for place, own in values.items()
    ]
