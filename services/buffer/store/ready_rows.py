"""Statements on experiences that can be batched."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.batch_metrics import MeasuredRow
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import ExperienceState
from services.buffer.store.database import (
    among_given,
    decode_numbers,
    given,
    in_given_stage,
    in_stage,
    of_given_stage,
    one_of,
)
from services.buffer.store.prepared import Row, fetch, fetch_column
from services.buffer.store.runs import WonRun, won_runs
from services.buffer.store.tables import experience
from trinity.types import StageKey

C = experience.c
Place = tuple[int, int]
"""Explore step and position of a group."""
RUN_SECONDS = "time/run_execution"
"""Among a run's metrics, by the name that Trinity-RFT's charts have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyRow:
    """A row that can be batched."""

    experience_id: str
    advantage: float
    measured: MeasuredRow


def is_ready(key: StageKey, before: Place | None) -> sa.ColumnElement[bool]:
    """Rows that can be batched; with `before` those of groups up to it."""
    c = experience.c
    ready = sa.and_(in_stage(experience, key), one_of(c.state, [ExperienceState.READY]))
    if before is None:
        return ready
    return sa.and_(ready, sa.tuple_(c.explore_step, c.position) < before)


BEFORE = ("before_step", "before_position")


def _is_ready_given(is_bounded: bool) -> sa.ColumnElement[bool]:
    """The same of the stage and, if bounded, up to the group that the parameters name."""
    ready = sa.and_(in_given_stage(experience), one_of(C.state, [ExperienceState.READY]))
    if not is_bounded:
        return ready
    before = (sa.bindparam(name, type_=sa.BigInteger) for name in BEFORE)
    return sa.and_(ready, sa.tuple_(C.explore_step, C.position) < sa.tuple_(*before))


def _given(stage: Stage, before: Place | None, **values: object) -> dict[str, object]:
    if before is not None:
        values |= zip(BEFORE, before, strict=True)
    return given(stage.key, **values)


@lru_cache
def _count(is_bounded: bool) -> sa.Select[Any]:
    enough = sa.bindparam("enough", type_=sa.Integer)
    some = sa.select(C.run).where(_is_ready_given(is_bounded)).limit(enough).subquery()
    return sa.select(sa.func.count()).select_from(some)


async def count_ready(connection: AsyncConnection, stage: Stage, before: Place | None) -> int:
    """Rows that can be batched; where their order is fixed, those of groups up to `before`.

    Of more than a batch takes it is only said that there are more.
    """
    values = _given(stage, before, enough=stage.plan.num_rollout_rows + 1)
    return int((await fetch_column(connection, _count(before is not None), values))[0])


async def place_of_fresh(
    connection: AsyncConnection, stage: Stage, number: int, *, oldest: int, before: Place | None
) -> Place | None:
    """Place of the `number`-th ready row by order whose weights are not older than `oldest`.

    A row without a version has no age, here as in `filter_stale`.
    """
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

    Only those of groups up to `before`, and of none after `up_to`. What no version of the weights
    made, as another model's answer, is not old: the batch's figures count it.
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


@lru_cache
def _next(is_bounded: bool, is_ordered: bool) -> sa.Select[Any]:
    places = (C.explore_step, C.position, C.run, C.step, C.suffix)
    order = places if is_ordered else (C.ready_number,)
    limit = sa.bindparam("limit", type_=sa.Integer)
    return sa.select(*_READY).where(_is_ready_given(is_bounded)).order_by(*order).limit(limit)


async def ready_rows(
    connection: AsyncConnection, stage: Stage, *, limit: int, before: Place | None
) -> list[ReadyRow]:
    """The next rows to batch: in order of the rollouts up to `before`, or as they became ready."""
    statement = _next(before is not None, stage.is_ordered)
    rows = await fetch(connection, statement, _given(stage, before, limit=limit))
    return await _measured(connection, stage.key, rows)


_THESE = sa.select(*_READY).where(of_given_stage(experience), among_given(C.experience_id))


async def rows_of(connection: AsyncConnection, key: StageKey, ids: Sequence[str]) -> list[ReadyRow]:
    """Rows to batch, in the order of `ids`."""
    rows = await fetch(connection, _THESE, given(key, ids=list(ids)))
    found = {row.experience_id: row for row in await _measured(connection, key, rows)}
    return [found[one] for one in ids]


async def _measured(
    connection: AsyncConnection, key: StageKey, rows: Sequence[Row]
) -> list[ReadyRow]:
    runs = await won_runs(connection, key, {row.assignment_id for row in rows})
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
                run_metrics=_of_run(runs.get((row.assignment_id, row.run))),
            ),
        )
        for row in rows
    ]


def _of_run(won: WonRun | None) -> dict[str, float]:
    return {} if won is None else {**won.metrics, RUN_SECONDS: won.duration_seconds}
