"""Statements on experiences that can be batched."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.batch_metrics import MeasuredRow
from services.buffer.domain.stage import Stage
from services.buffer.domain.states import AttemptState, ExperienceState
from services.buffer.store.database import (
    among_given,
    decode_numbers,
    given,
    in_given_stage,
    in_stage,
    of_given_stage,
    one_of,
)
from services.buffer.store.prepared import Row, fetch, fetch_column, fetch_together
from services.buffer.store.tables import STAGE_KEY, experience, run_attempt
from services.buffer.store.unfinished import FIRST_PLACE
from trinity.types import StageKey

C, R = experience.c, run_attempt.c
Place = tuple[int, int]
"""Explore step and position of a group."""
RUN_SECONDS = "time/run_execution"
"""Metric name of a run's duration, as in Trinity-RFT's charts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyRow:
    """A row that can be batched."""

    experience_id: str
    advantage: float
    measured: MeasuredRow


def is_ready(key: StageKey, before: Place | None) -> sa.ColumnElement[bool]:
    """Condition: rows that can be batched; with `before`, only of groups before that place."""
    c = experience.c
    ready = sa.and_(in_stage(experience, key), one_of(c.state, [ExperienceState.READY]))
    if before is None:
        return ready
    return sa.and_(ready, sa.tuple_(c.explore_step, c.position) < before)


def _can_be_batched(is_ordered: bool) -> sa.ColumnElement[bool]:
    """Condition: the same with parameters; `is_ordered` stops at the first unfinished group."""
    ready = sa.and_(in_given_stage(experience), one_of(C.state, [ExperienceState.READY]))
    if not is_ordered:
        return ready
    return sa.and_(ready, sa.tuple_(C.explore_step, C.position) < FIRST_PLACE)


_LIMIT = sa.bindparam("limit", type_=sa.Integer)


@lru_cache
def _count(is_ordered: bool) -> sa.Select[Any]:
    some = sa.select(C.run).where(_can_be_batched(is_ordered)).limit(_LIMIT + 1).subquery()
    return sa.select(sa.func.count()).select_from(some)


async def count_ready(connection: AsyncConnection, stage: Stage) -> int:
    """Counts rows that can be batched; in ordered stages up to the first unfinished group.

    The count stops at one more than a batch takes.
    """
    values = given(stage.key, limit=stage.plan.num_rollout_rows)
    return int((await fetch_column(connection, _count(stage.is_ordered), values))[0])


async def place_of_fresh(
    connection: AsyncConnection, stage: Stage, number: int, *, oldest: int, before: Place | None
) -> Place | None:
    """Returns the place of the `number`-th ready row with weights not older than `oldest`.

    A row without a version is never stale, here as in `filter_stale`.
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
    """Filters ready rows with weights older than `oldest`; returns their number.

    Only rows of groups before `before` and not after `up_to`. Rows without a version, such as the
    answers of another model, are not stale: the batch's metrics count them.
    """
    c = experience.c
    stale = sa.and_(is_ready(stage.key, before), c.version_min < oldest)
    if up_to is not None:
        stale = sa.and_(stale, sa.tuple_(c.explore_step, c.position) <= up_to)
    left_out = {"state": ExperienceState.FILTERED, "reason": reason}
    statement = sa.update(experience).where(stale).values(left_out).returning(c.run)
    return len((await connection.execute(statement)).all())


_NAMES = (
    *("experience_id", "assignment_id", "explore_step", "position", "run", "advantage"),
    *("reward", "response_length", "version_min", "metrics"),
)
_BY_PLACE = ("explore_step", "position", "run", "step", "suffix")
_AS_READY = ("ready_number",)


def _with_run(rows: sa.FromClause) -> sa.Select[Any]:
    """Builds a select of experiences with the winning attempt of their run, NULL without one.

    Runs are looked up per row (LATERAL): a join might compare every row with every run.
    """
    same = (*STAGE_KEY, "assignment_id", "run")
    won = (
        sa.select(R.metrics.label("run_metrics"), R.duration_seconds)
        .where(*(R[name] == rows.c[name] for name in same), one_of(R.state, [AttemptState.WON]))
        .limit(1)
        .lateral("won")
    )
    columns = (*(rows.c[name] for name in _NAMES), *won.c)
    return sa.select(*columns).join_from(rows, won, sa.true(), isouter=True)


@lru_cache
def _next(is_ordered: bool) -> sa.Select[Any]:
    """Builds a select of the next rows to batch; empty unless there are as many as wanted."""
    order = _BY_PLACE if is_ordered else _AS_READY
    some = (
        sa.select(*(C[name] for name in dict.fromkeys((*STAGE_KEY, *_NAMES, *order))))
        .where(_can_be_batched(is_ordered))
        .order_by(*(C[name] for name in order))
        .limit(_LIMIT)
        .cte("some")
    )
    num_rows = sa.select(sa.func.count()).select_from(some).scalar_subquery()
    are_enough = num_rows >= sa.bindparam("wanted", type_=sa.Integer)
    return _with_run(some).where(are_enough).order_by(*(some.c[name] for name in order))


@dataclass(frozen=True, slots=True)
class Ready:
    """Rows that can be batched now."""

    num_rows: int
    """Counted as by `count_ready`."""
    rows: list[ReadyRow]
    """The next rows, in rollout order or in the order they became ready; empty if too few."""


async def load_ready(connection: AsyncConnection, stage: Stage, *, wanted: int) -> Ready:
    """Returns the rows of a batch, if there are as many as wanted, and the number of ready rows."""
    values = given(stage.key, limit=stage.plan.num_rollout_rows, wanted=wanted)
    [[number], rows] = await fetch_together(
        connection, (_count(stage.is_ordered), values), (_next(stage.is_ordered), values)
    )
    return Ready(number[0], [_measured(row) for row in rows])


_THESE = _with_run(experience).where(of_given_stage(experience), among_given(C.experience_id))


async def rows_of(connection: AsyncConnection, key: StageKey, ids: Sequence[str]) -> list[ReadyRow]:
    """Returns rows to batch, in the order of `ids`."""
    rows = await fetch(connection, _THESE, given(key, ids=list(ids)))
    found = {row.experience_id: _measured(row) for row in rows}
    return [found[own_id] for own_id in ids]


def _measured(row: Row) -> ReadyRow:
    run_metrics = {}
    if row.run_metrics is not None:
        run_metrics = decode_numbers(row.run_metrics) | {RUN_SECONDS: row.duration_seconds}
    return ReadyRow(
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
            run_metrics=run_metrics,
        ),
    )
