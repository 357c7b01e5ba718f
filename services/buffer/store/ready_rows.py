"""Statements on rows that are ready to be batched or trained again, and counts of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from services.buffer.domain.admission import RowLoad
from services.buffer.domain.batches import MeasuredRow
from services.buffer.domain.stage import (
    UNFINISHED_SCOPE,
    AssignmentKind,
    AttemptState,
    ExperienceState,
    Stage,
)
from services.buffer.store.database import (
    BIGINTS,
    count_rows,
    decode_numbers,
    id_in,
    in_stage,
    of_line,
    of_stage,
    one_of,
    stage_params,
    value_of,
)
from services.buffer.store.schema import (
    STAGE_KEY,
    assignment,
    batch_item,
    experience,
    pipeline_scope,
    run_attempt,
)
from services.buffer.store.segments import retired_segments
from trinity.runtime.sql import Connection, Row
from trinity.types import StageKey

ASSIGNMENT, PIPELINE_SCOPE = assignment.c, pipeline_scope.c
_IN_WORK = sa.and_(
    in_stage(assignment), ASSIGNMENT.kind == AssignmentKind.TRAIN, ASSIGNMENT.is_open
)
_IN_PIPELINE = sa.and_(in_stage(pipeline_scope), one_of(PIPELINE_SCOPE.state, UNFINISHED_SCOPE))
_BEYOND_ALL = sa.select(*(sa.literal(2**63 - 1, sa.BigInteger) for _ in range(2)))
EXPERIENCE, RUN_ATTEMPT = experience.c, run_attempt.c
Place = tuple[int, int]
"""Explore step and position of a group."""
RUN_SECONDS = "time/run_execution"
"""Metric name of a run's duration, as in Trinity-RFT's charts."""
_LIMIT = sa.bindparam("limit", type_=sa.Integer)
_NAMES = (
    *("experience_id", "assignment_id", "explore_step", "position", "run", "advantage"),
    *("reward", "response_length", "version_min", "metrics", "finish_reason"),
)
_BY_PLACE = ("explore_step", "position", "run", "step", "suffix")
_AS_READY = ("ready_number",)
_UP_TO_END = tuple(sa.bindparam(name, type_=sa.BigInteger) for name in ("end_step", "end_position"))
_SOME_BEFORE = (
    sa.select(*(EXPERIENCE[name] for name in dict.fromkeys((*STAGE_KEY, *_NAMES, *_BY_PLACE))))
    .where(
        in_stage(experience),
        one_of(EXPERIENCE.state, [ExperienceState.READY]),
        sa.tuple_(EXPERIENCE.explore_step, EXPERIENCE.position) < sa.tuple_(*_UP_TO_END),
    )
    .cte("some_before")
)
_OPEN_RUNS = (
    sa.select(sa.func.coalesce(sa.func.sum(assignment.c.num_open_runs), 0))
    .where(in_stage(assignment), assignment.c.kind == AssignmentKind.TRAIN, assignment.c.is_open)
    .scalar_subquery()
)
TAKEN = (ExperienceState.READY, ExperienceState.BATCHED)
"""States of experiences that passed the pipeline, trained or not. A batched one that a user
excluded has a reason."""


def _first(table: sa.Table, which: sa.ColumnElement[bool]) -> sa.Select[tuple[int, int]]:
    place = (table.c.explore_step, table.c.position)
    first = sa.select(*place).where(which).order_by(*place).limit(1).subquery()
    return sa.select(first)


_FIRST = sa.union_all(_first(assignment, _IN_WORK), _first(pipeline_scope, _IN_PIPELINE))
_PLACES = sa.union_all(*_FIRST.selects, _BEYOND_ALL).subquery("places")
FIRST_PLACE = (
    sa.select(_PLACES.c.explore_step, _PLACES.c.position)
    .order_by(_PLACES.c.explore_step, _PLACES.c.position)
    .limit(1)
    .scalar_subquery()
)
"""The first unfinished place, as part of a statement on the stage; beyond all places if missing."""


async def first_unfinished(connection: Connection, key: StageKey) -> tuple[int, int] | None:
    """Returns explore step and position of the first open or unprocessed training group."""
    rows = await connection.fetch(_FIRST, stage_params(key))
    return min(((row.explore_step, row.position) for row in rows), default=None)


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
    ready = sa.and_(in_stage(experience), one_of(EXPERIENCE.state, [ExperienceState.READY]))
    if not is_ordered:
        return ready
    return sa.and_(ready, sa.tuple_(EXPERIENCE.explore_step, EXPERIENCE.position) < FIRST_PLACE)


@lru_cache
def _count(is_ordered: bool) -> sa.Select[Any]:
    some = sa.select(EXPERIENCE.run).where(_can_be_batched(is_ordered)).limit(_LIMIT + 1).subquery()
    return sa.select(sa.func.count()).select_from(some)


async def count_ready(connection: Connection, stage: Stage) -> int:
    """Counts rows that can be batched; in ordered stages up to the first unfinished group.

    The count stops at one more than a batch takes.
    """
    values = stage_params(stage.key, limit=stage.plan.num_rollout_rows)
    return int(await connection.fetch_value(_count(stage.is_ordered), values))


def _age_column(stage: Stage) -> sa.ColumnElement[int | None]:
    """Returns the version by which a row is too old: of its oldest token, or its newest."""
    by_token = stage.plan.masks_stale_tokens
    return experience.c.version_max if by_token else experience.c.version_min


async def place_of_fresh(
    connection: Connection, stage: Stage, number: int, *, oldest: int, before: Place | None
) -> Place | None:
    """Returns the place of the `number`-th ready row with weights not older than `oldest`.

    A row without a version is never stale, here as in `filter_stale`.
    """
    c = experience.c
    statement = (
        sa.select(c.explore_step, c.position)
        .where(is_ready(stage.key, before), sa.func.coalesce(_age_column(stage), oldest) >= oldest)
        .order_by(c.explore_step, c.position)
        .offset(number - 1)
        .limit(1)
    )
    row = await connection.fetch_first(statement)
    return None if row is None else (row.explore_step, row.position)


async def filter_stale(
    connection: Connection,
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
    stale = sa.and_(is_ready(stage.key, before), _age_column(stage) < oldest)
    if up_to is not None:
        stale = sa.and_(stale, sa.tuple_(c.explore_step, c.position) <= up_to)
    left_out = {"state": ExperienceState.FILTERED, "reason": reason}
    statement = sa.update(experience).where(stale).values(left_out).returning(c.run)
    return len(await connection.fetch(statement))


def _with_run(rows: sa.FromClause) -> sa.Select[Any]:
    """Builds a select of experiences with the winning attempt of their run, NULL without one.

    Runs are looked up per row (LATERAL): a join might compare every row with every run.
    """
    same = (*STAGE_KEY, "assignment_id", "run")
    won = (
        sa.select(RUN_ATTEMPT.metrics.label("run_metrics"), RUN_ATTEMPT.duration_seconds)
        .where(
            *(RUN_ATTEMPT[name] == rows.c[name] for name in same),
            one_of(RUN_ATTEMPT.state, [AttemptState.WON]),
        )
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
        sa.select(*(EXPERIENCE[name] for name in dict.fromkeys((*STAGE_KEY, *_NAMES, *order))))
        .where(_can_be_batched(is_ordered))
        .order_by(*(EXPERIENCE[name] for name in order))
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


async def load_ready(
    connection: Connection, stage: Stage, *, wanted: int, in_order: bool = True
) -> Ready:
    """Returns the rows of a batch, if there are as many as wanted, and the number of ready rows.

    In ordered stages these are rows that no open work precedes, unless `in_order` is false.
    """
    values = stage_params(stage.key, limit=stage.plan.num_rollout_rows, wanted=wanted)
    is_ordered = stage.is_ordered and in_order
    [[number], rows] = await connection.fetch_together(
        (_count(is_ordered), values), (_next(is_ordered), values)
    )
    return Ready(number[0], [_measured(row) for row in rows])


_BEFORE = _with_run(_SOME_BEFORE).order_by(*(_SOME_BEFORE.c[name] for name in _BY_PLACE))


async def rows_before(connection: Connection, key: StageKey, before: Place) -> list[ReadyRow]:
    """Returns all ready rows of groups before that place, in rollout order."""
    end_step, end_position = before
    values = stage_params(key, end_step=end_step, end_position=end_position)
    return [_measured(row) for row in await connection.fetch(_BEFORE, values)]


_THESE = _with_run(experience).where(of_stage(experience), id_in(EXPERIENCE.experience_id))


async def ready_rows_by_id(
    connection: Connection, key: StageKey, ids: Sequence[str]
) -> list[ReadyRow]:
    """Returns rows to batch, in the order of `ids`."""
    rows = await connection.fetch(_THESE, stage_params(key, ids=list(ids)))
    found = {row.experience_id: _measured(row) for row in rows}
    return [found[own_id] for own_id in ids]


def _measured(row: Row) -> ReadyRow:
    run_metrics = {}
    if row.run_metrics is not None:
        run_metrics = decode_numbers(row.run_metrics) | {RUN_SECONDS: row.duration_seconds}
    return ReadyRow(
        experience_id=row.experience_id,
        advantage=row.advantage,
        measured=value_of(
            MeasuredRow, row, metrics=decode_numbers(row.metrics), run_metrics=run_metrics
        ),
    )


def _num_in_state(state: ExperienceState) -> sa.ScalarSelect[int]:
    return (
        sa.select(sa.func.count())
        .select_from(experience)
        .where(in_stage(experience), one_of(experience.c.state, [state]))
        .scalar_subquery()
    )


_COUNTS = sa.select(
    _OPEN_RUNS.label("open_runs"),
    _num_in_state(ExperienceState.RAW).label("raw"),
    _num_in_state(ExperienceState.AWAITING).label("awaiting"),
)
_READY = sa.select(_num_in_state(ExperienceState.READY).label("number"))


async def count_state(connection: Connection, key: StageKey, state: ExperienceState) -> int:
    """Counts the experiences of a stage in this state."""
    is_there = one_of(EXPERIENCE.state, [state])
    return await count_rows(connection, experience, in_stage(experience, key), is_there)


async def current_load(connection: Connection, stage: Stage) -> RowLoad:
    """Counts the open runs of training assignments, and rows that are not batched yet.

    Without a trainer no ready row is ever batched, so ready rows do not count then.
    """
    key = stage_params(stage.key)
    asked = [_COUNTS, _READY] if stage.plan.needs_training else [_COUNTS]
    [row], *ready = await connection.fetch_together(*((statement, key) for statement in asked))
    return RowLoad(
        num_outstanding=int(row.open_runs) + row.raw + row.awaiting,
        num_ready=sum(rows[0].number for rows in ready),
    )


async def least_used(connection: Connection, stage: Stage, count: int) -> list[ReadyRow]:
    """Returns the rows of the source that this stage has trained least often, in order."""
    uses = _uses(stage)
    num_uses = sa.func.coalesce(uses.c.num, 0)
    retired = await retired_segments(connection, stage.samples_key)
    statement = (
        sa.select(EXPERIENCE.experience_id)
        .join_from(experience, uses, uses.c.experience_id == EXPERIENCE.experience_id, isouter=True)
        .where(
            _is_taken(stage.samples_key),
            EXPERIENCE.segment_id != sa.all_(sa.cast(list(retired), BIGINTS)),
        )
        .order_by(num_uses, *(EXPERIENCE[name] for name in _BY_PLACE))
        .limit(count)
    )
    ids = await connection.fetch_column(statement)
    return await ready_rows_by_id(connection, stage.samples_key, ids)


def _uses(stage: Stage) -> sa.Subquery:
    """Builds a count of the uses of each sample in the batches of the line."""
    used = batch_item.c.experience_id
    return (
        sa.select(used, sa.func.count().label("num"))
        .where(of_line(batch_item, stage))
        .group_by(used)
        .subquery()
    )


async def count_taken(connection: Connection, key: StageKey) -> tuple[int, int]:
    """Counts the rows of a source with contents, and those in retired segments."""
    retired = await retired_segments(connection, key)
    statement = (
        sa.select(EXPERIENCE.segment_id, sa.func.count())
        .where(_is_taken(key))
        .group_by(EXPERIENCE.segment_id)
    )
    numbers = await connection.fetch(statement)
    num_gone = sum(number for segment_id, number in numbers if segment_id in retired)
    return sum(number for _, number in numbers) - num_gone, num_gone


async def segments_taken(connection: Connection, key: StageKey) -> Iterable[int]:
    """Returns the segments with rows that another stage may train on."""
    statement = sa.select(EXPERIENCE.segment_id).distinct().where(_is_taken(key))
    return await connection.fetch_column(statement)


def _is_taken(key: StageKey) -> sa.ColumnElement[bool]:
    return sa.and_(
        in_stage(experience, key), one_of(EXPERIENCE.state, TAKEN), EXPERIENCE.reason == ""
    )
