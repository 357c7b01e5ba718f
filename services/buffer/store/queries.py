"""Statements that search for samples, page by page in a stable order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import eq, ge, le
from typing import Any, NamedTuple

import sqlalchemy as sa

from services.buffer.domain.stage import ExperienceState
from services.buffer.domain.tasks import SampleCursor, SampleFilter
from services.buffer.store.database import (
    decode_numbers,
    id_in,
    in_stage,
    of_stage,
    one_of,
    stage_params,
    value_of,
)
from services.buffer.store.experiences import PLACE, bodies_at, has_content
from services.buffer.store.schema import assignment, batch_item, experience, stage
from services.buffer.store.segments import payloads_of, retired_segments, unavailable_if_dropped
from services.buffer.store.stages import lock_stage
from trinity.runtime.sql import Connection, Row
from trinity.types import StageKey

SINK_LOCK_PREFIX = "experience sink"
EXPERIENCE, ASSIGNMENT = experience.c, assignment.c
_PLACE = (EXPERIENCE.explore_step, EXPERIENCE.position)
_IN_GROUP = tuple(
    EXPERIENCE[name] for name in ("run", "step", "suffix", "revision", "experience_id")
)
"""The order of samples within their group."""
_LEFT_OUT = [
    ExperienceState.EVAL,
    ExperienceState.SUPERSEDED,
    ExperienceState.LATE,
    ExperienceState.DELETED,
]
_NEWEST = sa.select(sa.func.coalesce(sa.func.max(EXPERIENCE.ready_number), 0)).where(
    of_stage(experience), EXPERIENCE.ready_number > sa.bindparam("after", type_=sa.BigInteger)
)
_NEXT = (
    sa.select(EXPERIENCE.experience_id, EXPERIENCE.ready_number, *PLACE)
    .where(
        has_content(),
        EXPERIENCE.revision == 0,
        EXPERIENCE.ready_number > sa.bindparam("after", type_=sa.BigInteger),
        EXPERIENCE.ready_number <= sa.bindparam("until", type_=sa.BigInteger),
        sa.not_(one_of(EXPERIENCE.state, _LEFT_OUT)),
    )
    .order_by(EXPERIENCE.ready_number)
    .limit(sa.bindparam("most", type_=sa.Integer))
)
GROUPS_AT_ONCE = 256
"""Groups that the first page of a search looks into."""
MOST_GROUPS_AT_ONCE = 2_048


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedExperience:
    """A sample as its run gave it, with its place in the order of commits."""

    number: int
    experience_id: str
    body: bytes


async def newest_committed(connection: Connection, key: StageKey, after: int) -> int:
    """Returns the number of the stage's newest committed sample, or 0 if it is not above `after`.

    The stage is locked alone, so that no transaction is open that has taken a lower number: every
    sample up to this number is committed, and later ones get higher numbers.
    """
    await lock_stage(connection, key)
    return int(await connection.fetch_value(_NEWEST, stage_params(key, after=after)))


async def committed_after(
    connection: Connection, key: StageKey, *, after: int, until: int, most: int
) -> Sequence[CommittedExperience]:
    """Returns the next samples of training runs that won, in the order of their commits.

    Deleted ones, and those whose contents are removed by `buffer.keep_steps`, are left out.
    """
    values = stage_params(key, after=after, until=until, most=most)
    rows = await connection.fetch(_NEXT, values)
    bodies = await bodies_at(connection, key, rows)
    return [
        CommittedExperience(
            number=row.ready_number,
            experience_id=str(row.experience_id),
            body=bodies[row.experience_id],
        )
        for row in rows
        if row.experience_id in bodies
    ]


async def try_sink_lock(connection: Connection, key: StageKey) -> bool:
    """Tries to become the stage's only writer until the transaction ends."""
    name = f"{SINK_LOCK_PREFIX} {key.tenant} {key.experiment_id} {key.stage}"
    asked = sa.select(sa.func.pg_try_advisory_xact_lock(sa.func.hashtextextended(name, 0)))
    return bool(await connection.fetch_value(asked))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredExperience:
    """A row of the experience table, with the task it came from."""

    cursor: SampleCursor
    assignment_id: str
    parent_id: str | None
    attempt: int
    taskset: str
    task_index: int
    segment_id: int
    payload_id: str
    state: ExperienceState
    reason: str
    reward: float | None
    shaped_reward: float | None
    advantage: float | None
    version_min: int | None
    version_max: int | None
    num_tokens: int
    response_length: int
    finish_reason: str
    metrics: Mapping[str, float]
    turn_sha256: bytes | None
    created_at: datetime

    @property
    def experience_id(self) -> str:
        """Its UUID."""
        return self.cursor.experience_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Samples in order, and the cursor for the next page; `end` is None on the last one."""

    rows: Sequence[StoredExperience]
    end: SampleCursor | None
    num_examined: int
    """Samples that satisfy all but the text, of which `rows` may be few."""


class StepRange(NamedTuple):
    """Explore steps from `first` to `last`."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """The request for a page of samples."""

    key: StageKey
    wanted: SampleFilter
    """Of its `text` the bytes are looked for in whole contents, so that there may be too many."""
    after: SampleCursor | None
    """End of the previous page."""
    size: int
    latest_first: bool = False
    """Descending by explore step and position; samples of a group stay in ascending order."""
    num_groups: int = GROUPS_AT_ONCE
    """Groups that the page looks into."""
    steps: StepRange | None = None
    """Explore steps that alone have samples of the wanted weights; None where that is not known."""


async def list_page(connection: Connection, request: PageRequest) -> Page:
    """Returns the next page of samples; a page may be empty without being the last.

    Groups are found first, in the order of their places, then their samples by the groups' ids: one
    query over both would sort all samples of the stage for every page.
    """
    groups = await _groups(connection, request)
    looked_at = _with_text if request.wanted.text else _of_groups
    found = await looked_at(connection, request, groups)
    if found.last is not None:
        return Page(rows=found.rows, end=found.last, num_examined=found.num_examined)
    end = _end_of(groups[-1]) if len(groups) == request.num_groups else None
    return Page(rows=found.rows, end=end, num_examined=found.num_examined)


async def _groups(connection: Connection, request: PageRequest) -> list[Row]:
    conditions = [in_stage(assignment, request.key), *_group_conditions(request.wanted)]
    if (named := await _named(connection, request.key, request.wanted)) is not None:
        conditions.append(id_in(ASSIGNMENT.assignment_id, named))
    if request.after is not None:
        place = sa.tuple_(ASSIGNMENT.explore_step, ASSIGNMENT.position)
        here = (request.after.explore_step, request.after.position)
        conditions.append(place <= here if request.latest_first else place >= here)
    if request.steps is not None:
        conditions.append(ASSIGNMENT.explore_step.between(*request.steps))
    order = (ASSIGNMENT.explore_step, ASSIGNMENT.position)
    statement = (
        sa.select(ASSIGNMENT.assignment_id, ASSIGNMENT.taskset, ASSIGNMENT.task_index, *order)
        .where(*conditions)
        .order_by(*(column.desc() for column in order) if request.latest_first else order)
        .limit(request.num_groups)
    )
    return await connection.fetch(statement)


async def steps_of_versions(
    connection: Connection, key: StageKey, wanted: SampleFilter
) -> StepRange | None:
    """Returns the explore steps that have samples of the wanted weights; None if no step has.

    A block range index finds the parts of the table that can have some.
    """
    statement = sa.select(
        sa.func.min(EXPERIENCE.explore_step), sa.func.max(EXPERIENCE.explore_step)
    ).where(in_stage(experience, key), *_version_conditions(wanted))
    [(first, last)] = await connection.fetch(statement)
    return None if first is None else StepRange(first, last)


def _version_conditions(wanted: SampleFilter) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if wanted.version_min is not None:
        found.append(EXPERIENCE.version_max >= wanted.version_min)
    if wanted.version_max is not None:
        found.append(EXPERIENCE.version_min <= wanted.version_max)
    return found


def _group_conditions(wanted: SampleFilter) -> list[sa.ColumnElement[bool]]:
    found = [ASSIGNMENT.kind == wanted.kind]
    if wanted.taskset:
        found.append(ASSIGNMENT.taskset == wanted.taskset)
    if wanted.task_index is not None:
        found.append(ASSIGNMENT.task_index == wanted.task_index)
    if wanted.explore_step is not None:
        found.append(ASSIGNMENT.explore_step == wanted.explore_step)
    return found


async def _named(connection: Connection, key: StageKey, wanted: SampleFilter) -> set[str] | None:
    """Returns the groups of samples that the filter names by id or batch; None if it does not."""
    if not wanted.experience_ids and wanted.train_step is None:
        return None
    is_own = of_stage if wanted.experience_ids else in_stage
    statement = sa.select(EXPERIENCE.assignment_id).where(is_own(experience, key))
    if wanted.experience_ids:
        statement = statement.where(id_in(EXPERIENCE.experience_id, wanted.experience_ids))
    if wanted.train_step is not None:
        statement = statement.where(_in_batch(key, wanted))
    return set(await connection.fetch_column(statement.distinct()))


def _in_batch(key: StageKey, wanted: SampleFilter) -> sa.ColumnElement[bool]:
    first, last = wanted.train_step, wanted.train_step_last
    line = sa.select(stage.c.line).where(in_stage(stage, key)).scalar_subquery()
    c = batch_item.c
    items = sa.select(c.experience_id).where(
        in_stage(batch_item, key),
        c.line == line,
        c.step == first if last is None else c.step.between(first, last),
        c.experience_id.is_not(None),
    )
    return EXPERIENCE.experience_id.in_(items)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Samples of some groups."""

    rows: list[StoredExperience]
    num_examined: int
    last: SampleCursor | None
    """The last sample examined, if the requested number was reached."""


async def _of_groups(connection: Connection, request: PageRequest, groups: Sequence[Row]) -> _Found:
    """Returns samples of these groups, at most the requested number."""
    if not groups:
        return _Found(rows=[], num_examined=0, last=None)
    rows = await connection.fetch(_in_order(sa.select(experience), request, groups))
    found = _stored_rows(rows, groups)
    last = found[-1].cursor if len(found) == request.size else None
    return _Found(rows=found, num_examined=len(found), last=last)


async def _with_text(connection: Connection, request: PageRequest, groups: Sequence[Row]) -> _Found:
    """Examines the requested number of samples; returns those that contain the bytes of the text.

    A search for a rare text examines many samples: it reads only the places of those without it.
    """
    if not groups:
        return _Found(rows=[], num_examined=0, last=None)
    narrow = sa.select(EXPERIENCE.experience_id, EXPERIENCE.segment_id, EXPERIENCE.payload_id)
    places = await connection.fetch(_in_order(narrow, request, groups))
    held = await sizes_of(connection, request.key, places, holding=request.wanted.text)
    last = places[-1].experience_id if len(places) == request.size else None
    wanted = {*held, last} if last is not None else held.keys()
    if not wanted:
        return _Found(rows=[], num_examined=len(places), last=None)
    whole = sa.select(experience).where(id_in(EXPERIENCE.experience_id, wanted))
    rows = {row.experience_id: row for row in await connection.fetch(whole)}
    own = [rows[place.experience_id] for place in places if place.experience_id in rows]
    stored = _stored_rows(own, groups)
    return _Found(
        rows=[row for row in stored if row.experience_id in held],
        num_examined=len(places),
        last=stored[-1].cursor if last is not None else None,
    )


def _in_order(
    columns: "sa.Select[Any]", request: PageRequest, groups: Sequence[Row]
) -> "sa.Select[Any]":
    """Returns the statement for columns of a page's samples, in the order of their places."""
    key = request.key
    place = [column.desc() for column in _PLACE] if request.latest_first else _PLACE
    own = [group.assignment_id for group in groups]
    conditions = [of_stage(experience, key), id_in(EXPERIENCE.assignment_id, own)]
    conditions += _conditions(key, request.wanted)
    if request.after is not None:
        conditions.append(_is_after(request.after, request.latest_first))
    return columns.where(*conditions).order_by(*place, *_IN_GROUP).limit(request.size)


def _stored_rows(rows: Iterable[Row], groups: Iterable[Row]) -> list[StoredExperience]:
    group_of = {group.assignment_id: group for group in groups}
    return [_stored(row, group_of[row.assignment_id]) for row in rows]


def _conditions(key: StageKey, wanted: SampleFilter) -> list[sa.ColumnElement[bool]]:
    found = [
        one_of(EXPERIENCE.state, wanted.states)
        if wanted.states
        else EXPERIENCE.state != ExperienceState.DERIVED
    ]
    for column, holds, bound in (
        (EXPERIENCE.reward, ge, wanted.reward_min),
        (EXPERIENCE.reward, le, wanted.reward_max),
        (EXPERIENCE.finish_reason, eq, wanted.finish_reason or None),
    ):
        if bound is not None:
            found.append(holds(column, bound))
    found += _version_conditions(wanted)
    if wanted.experience_ids:
        ids = wanted.experience_ids
        found.append(sa.or_(id_in(EXPERIENCE.experience_id, ids), id_in(EXPERIENCE.parent_id, ids)))
    if wanted.train_step is not None:
        found.append(_in_batch(key, wanted))
    return found


def _is_after(cursor: SampleCursor, latest_first: bool) -> sa.ColumnElement[bool]:
    place, tail = sa.tuple_(*_PLACE), sa.tuple_(*_IN_GROUP)
    here = (cursor.explore_step, cursor.position)
    last = (cursor.run, cursor.step, cursor.suffix, cursor.revision, cursor.experience_id)
    beyond = place < here if latest_first else place > here
    return sa.or_(beyond, sa.and_(place == here, tail > last))


def _end_of(group: Row) -> SampleCursor:
    """Returns a cursor after every sample of a group."""
    return SampleCursor(
        explore_step=group.explore_step,
        position=group.position,
        run=2**62,
        step=0,
        suffix="",
        revision=0,
        experience_id="00000000-0000-0000-0000-000000000000",
    )


def _stored(row: Row, group: Row) -> StoredExperience:
    return value_of(
        StoredExperience,
        row,
        cursor=value_of(SampleCursor, row),
        taskset=group.taskset,
        task_index=group.task_index,
        state=ExperienceState(row.state),
        metrics=decode_numbers(row.metrics),
    )


async def load_experiences(
    connection: Connection, key: StageKey, ids: Iterable[str]
) -> dict[str, StoredExperience]:
    """Returns samples by id; ids without a sample are left out."""
    statement = sa.select(experience).where(
        of_stage(experience, key), id_in(EXPERIENCE.experience_id, ids)
    )
    rows = await connection.fetch(statement)
    tasks = sa.select(ASSIGNMENT.assignment_id, ASSIGNMENT.taskset, ASSIGNMENT.task_index).where(
        of_stage(assignment, key),
        id_in(ASSIGNMENT.assignment_id, {row.assignment_id for row in rows}),
    )
    found: Iterable[Row] = await connection.fetch(tasks)
    task_of = {row.assignment_id: row for row in found}
    return {row.experience_id: _stored(row, task_of[row.assignment_id]) for row in rows}


async def find_by_prefix(
    connection: Connection, key: StageKey, digits: str, *, limit: int
) -> list[str]:
    """Returns ids that begin with these hexadecimal digits (lower case, without dashes)."""
    first, last = digits.ljust(32, "0"), digits.ljust(32, "f")
    statement = (
        sa.select(EXPERIENCE.experience_id)
        .where(in_stage(experience, key), EXPERIENCE.experience_id.between(first, last))
        .order_by(EXPERIENCE.experience_id)
        .limit(limit)
    )
    return await connection.fetch_column(statement)


def _holds(text: str, body: sa.Column[bytes]) -> sa.ColumnElement[bool]:
    found: sa.ColumnElement[int] = sa.func.position(
        sa.literal(text.encode(), sa.LargeBinary).op("IN")(body)
    )
    return found > 0


async def sizes_of(
    connection: Connection,
    key: StageKey,
    rows: Sequence[StoredExperience] | Sequence[Row],
    *,
    holding: str = "",
) -> dict[str, int]:
    """Returns the content size in bytes by sample id; samples without content are left out.

    With `holding`, only contents whose bytes contain this text count.
    """
    sizes: dict[str, int] = {}
    retired = await retired_segments(connection, key)
    for segment_id in {row.segment_id for row in rows} - retired:
        own = {row.payload_id for row in rows if row.segment_id == segment_id}
        table = payloads_of(segment_id)
        c = table.c
        statement = sa.select(c.payload_id, sa.func.octet_length(c.body).label("size")).where(
            in_stage(table, key), c.segment_id == segment_id, id_in(c.payload_id, own)
        )
        if holding:
            statement = statement.where(_holds(holding, c.body))
        with unavailable_if_dropped():
            found = await connection.fetch(statement)
        sizes |= {row.payload_id: row.size for row in found}
    return {row.experience_id: sizes[row.payload_id] for row in rows if row.payload_id in sizes}
