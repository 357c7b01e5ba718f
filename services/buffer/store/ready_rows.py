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


def _can_be_batched(is_ordered: bool) -> sa.ColumnElement[bool]:
    """The same of the given stage; where the order is fixed, up to the first unfinished group."""
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
    """Rows that can be batched; where their order is fixed, up to the first unfinished group.

    Of more than a batch takes it is only said that there are more.
    """
    values = given(stage.key, limit=stage.plan.num_rollout_rows)
    return int((await fetch_column(connection, _count(stage.is_ordered), values))[0])


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


_NAMES = (
    *("experience_id", "assignment_id", "explore_step", "position", "run", "advantage"),
    *("reward", "response_length", "version_min", "metrics"),
)
_BY_PLACE = ("explore_step", "position", "run", "step", "suffix")
_AS_READY = ("ready_number",)


def _with_run(rows: sa.FromClause) -> sa.Select[Any]:
    """Experiences, each with what is known of its run; where none won, nothing is.

    Runs are looked up one by one: a join might compare every row with every run.
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
    """The next rows to batch, if there are as many as are wanted."""
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
    """What can be batched now."""

    num_rows: int
    """As `count_ready` says."""
    rows: list[ReadyRow]
    """The next ones, in order of the rollouts or as they became ready, if there are enough."""


async def load_ready(connection: AsyncConnection, stage: Stage, *, wanted: int) -> Ready:
    """The rows of a batch, none unless there are as many as are wanted; and how many there are."""
    values = given(stage.key, limit=stage.plan.num_rollout_rows, wanted=wanted)
    [[number], rows] = await fetch_together(
        connection, (_count(stage.is_ordered), values), (_next(stage.is_ordered), values)
    )
    return Ready(number[0], [_measured(row) for row in rows])


_THESE = _with_run(experience).where(of_given_stage(experience), among_given(C.experience_id))


async def rows_of(connection: AsyncConnection, key: StageKey, ids: Sequence[str]) -> list[ReadyRow]:
    """Rows to batch, in the order of `ids`."""
    rows = await fetch(connection, _THESE, given(key, ids=list(ids)))
    found = {row.experience_id: _measured(row) for row in rows}
    return [found[one] for one in ids]


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
