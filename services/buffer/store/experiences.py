"""Statements on experiences and their payloads."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.batch_metrics import MeasuredRow
from services.buffer.domain.evaluation import RunScore
from services.buffer.domain.group import Sample
from services.buffer.domain.results import Result
from services.buffer.domain.states import AssignmentKind, AttemptState, ExperienceState
from services.buffer.store.database import (
    decode_numbers,
    encode_numbers,
    in_stage,
    insert_rows,
    key_columns,
    same_stage,
)
from services.buffer.store.tables import assignment, experience, payload, run_attempt
from trinity.types import StageKey

CODEC = "trinity.api.v1.Experience"
SCHEMA_VERSION = 1
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
    await insert_rows(connection, payload, payloads)
    await insert_rows(connection, experience, rows)
    return len(rows)


async def load_raw_samples(
    connection: AsyncConnection, key: StageKey, assignment_id: str
) -> list[Sample]:
    """The samples of a group that the pipeline has not shaped yet, in order."""
    statement = (
        sa.select(experience)
        .where(
            in_stage(experience, key),
            experience.c.assignment_id == assignment_id,
            experience.c.state == ExperienceState.RAW,
        )
        .order_by(experience.c.run, experience.c.step, experience.c.suffix)
    )
    return [
        Sample(experience_id=row.experience_id, reward=row.reward, finish_reason=row.finish_reason)
        for row in await connection.execute(statement)
    ]


COPIED = (
    "tenant", "experiment_id", "stage", "assignment_id", "explore_step", "position", "run",
    "attempt", "step", "suffix", "segment_id", "payload_id", "reward", "version_min", "version_max",
    "num_tokens", "response_length", "finish_reason", "metrics", "content_hash",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """A new revision of an experience."""

    experience_id: str
    parent_id: str
    advantage: float


async def insert_derived(
    connection: AsyncConnection, key: StageKey, derived: Sequence[Derived]
) -> None:
    """Make ready rows of raw ones, in the order given; the parents stay as they came."""
    if not derived:
        return
    values = sa.values(
        sa.column("experience_id", experience.c.experience_id.type),
        sa.column("parent_id", experience.c.experience_id.type),
        sa.column("advantage", sa.Float),
        sa.column("ordinal", sa.Integer),
        name="derived",
    ).data([(one.experience_id, one.parent_id, one.advantage, i) for i, one in enumerate(derived)])
    parent = experience.alias("parent")
    chosen = (
        sa.select(
            *(parent.c[name] for name in COPIED),
            values.c.experience_id,
            values.c.parent_id,
            (parent.c.revision + 1),
            sa.cast(values.c.advantage, sa.Float),
            sa.literal(ExperienceState.READY.value),
        )
        .select_from(
            values.join(
                parent,
                sa.and_(in_stage_alias(parent, key), parent.c.experience_id == values.c.parent_id),
            )
        )
        .order_by(values.c.ordinal)
    )
    columns = [*COPIED, "experience_id", "parent_id", "revision", "advantage", "state"]
    await connection.execute(sa.insert(experience).from_select(columns, chosen))
    await set_states(connection, key, [one.parent_id for one in derived], ExperienceState.DERIVED)


def in_stage_alias(table: sa.FromClause, key: StageKey) -> sa.ColumnElement[bool]:
    """Rows of one stage in an alias."""
    return sa.and_(
        table.c.tenant == key.tenant,
        table.c.experiment_id == key.experiment_id,
        table.c.stage == key.stage,
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
        await connection.execute(
            sa.update(experience)
            .where(in_stage(experience, key), experience.c.experience_id.in_(ids))
            .values(state=state, reason=reason)
        )


async def filter_raw(
    connection: AsyncConnection, key: StageKey, assignment_id: str, reason: str
) -> None:
    """Leave out every sample of a group that the pipeline could not shape."""
    await connection.execute(
        sa.update(experience)
        .where(
            in_stage(experience, key),
            experience.c.assignment_id == assignment_id,
            experience.c.state == ExperienceState.RAW,
        )
        .values(state=ExperienceState.FILTERED, reason=reason)
    )


async def count_state(connection: AsyncConnection, key: StageKey, state: ExperienceState) -> int:
    """Experiences of a stage in this state."""
    statement = (
        sa.select(sa.func.count())
        .select_from(experience)
        .where(in_stage(experience, key), experience.c.state == state)
    )
    return (await connection.execute(statement)).scalar_one()


async def ready_rows(
    connection: AsyncConnection,
    key: StageKey,
    *,
    limit: int,
    is_ordered: bool,
    before: Place | None,
) -> list[ReadyRow]:
    """The next rows to batch: in order of the rollouts up to `before`, or as they became ready."""
    won = sa.and_(
        same_stage(run_attempt, experience),
        run_attempt.c.assignment_id == experience.c.assignment_id,
        run_attempt.c.run == experience.c.run,
        run_attempt.c.state == AttemptState.WON,
    )
    statement = (
        sa.select(experience, run_attempt.c.metrics.label("run_metrics"))
        .join(run_attempt, won)
        .where(in_stage(experience, key), experience.c.state == ExperienceState.READY)
        .limit(limit)
    )
    c = experience.c
    if not is_ordered:
        statement = statement.order_by(c.ready_number)
    else:
        statement = statement.order_by(c.explore_step, c.position, c.run, c.step, c.suffix)
        if before is not None:
            statement = statement.where(sa.tuple_(c.explore_step, c.position) < before)
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
                run_metrics=decode_numbers(row.run_metrics),
            ),
        )
        for row in await connection.execute(statement)
    ]


async def load_bodies(
    connection: AsyncConnection, key: StageKey, ids: Sequence[str]
) -> list[bytes]:
    """Wire bytes of experiences, in the order of `ids`."""
    same_payload = sa.and_(
        same_stage(payload, experience),
        payload.c.segment_id == experience.c.segment_id,
        payload.c.payload_id == experience.c.payload_id,
    )
    statement = (
        sa.select(experience.c.experience_id, payload.c.body)
        .join(payload, same_payload)
        .where(in_stage(experience, key), experience.c.experience_id.in_(ids))
    )
    bodies = {row.experience_id: bytes(row.body) for row in await connection.execute(statement)}
    return [bodies[one] for one in ids]


async def run_scores(
    connection: AsyncConnection, key: StageKey, version: int, taskset: str
) -> list[RunScore]:
    """The numbers of every finished run of an evaluation."""
    sample_values = (
        sa.select(
            experience.c.assignment_id, experience.c.run, experience.c.reward, experience.c.metrics
        )
        .join(
            assignment,
            sa.and_(
                same_stage(assignment, experience),
                assignment.c.assignment_id == experience.c.assignment_id,
            ),
        )
        .where(
            in_stage(assignment, key),
            assignment.c.kind == AssignmentKind.EVAL,
            assignment.c.explore_step == version,
            assignment.c.taskset == taskset,
            experience.c.state == ExperienceState.EVAL,
        )
        .order_by(assignment.c.position, experience.c.run, experience.c.step)
    )
    values: dict[tuple[str, int], dict[str, list[float]]] = {}
    for row in await connection.execute(sample_values):
        own = values.setdefault((row.assignment_id, row.run), {})
        for name, value in decode_numbers(row.metrics).items():
            own.setdefault(name, []).append(value)
        if row.reward is not None:
            own.setdefault("reward", []).append(row.reward)
    await _add_run_metrics(connection, key, version, taskset, values)
    return [
        RunScore(
            assignment_id=place[0],
            values={name: sum(listed) / len(listed) for name, listed in own.items()},
        )
        for place, own in values.items()
    ]


async def _add_run_metrics(
    connection: AsyncConnection,
    key: StageKey,
    version: int,
    taskset: str,
    values: dict[tuple[str, int], dict[str, list[float]]],
) -> None:
    """A run's own metrics count beside those of its samples."""
    statement = (
        sa.select(run_attempt.c.assignment_id, run_attempt.c.run, run_attempt.c.metrics)
        .join(
            assignment,
            sa.and_(
                same_stage(assignment, run_attempt),
                assignment.c.assignment_id == run_attempt.c.assignment_id,
            ),
        )
        .where(
            in_stage(assignment, key),
            assignment.c.kind == AssignmentKind.EVAL,
            assignment.c.explore_step == version,
            assignment.c.taskset == taskset,
            run_attempt.c.state == AttemptState.WON,
        )
        .order_by(assignment.c.position, run_attempt.c.run)
    )
    for row in await connection.execute(statement):
        own = values.setdefault((row.assignment_id, row.run), {})
        for name, value in decode_numbers(row.metrics).items():
            own[name] = [value]
