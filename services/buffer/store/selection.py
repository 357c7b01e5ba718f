"""Statements on selectors of a stage's tasksets: ranking, beliefs, features, feedback."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert

from services.buffer.domain.stage import AssignmentState, ExperienceState, Stage
from services.buffer.domain.task_draws import FloatVector, IntVector, PassRateBeliefs
from services.buffer.store.database import (
    id_in,
    in_stage,
    insert_new,
    key_columns,
    of_line,
    of_taskset,
    one_of,
    stage_params,
    value_of,
)
from services.buffer.store.ready_rows import Place
from services.buffer.store.schema import (
    assignment,
    batch_item,
    experience,
    task,
    task_beliefs,
    task_feature,
    task_ranking,
)
from trinity.errors import PreconditionFailed
from trinity.runtime.sql import Connection
from trinity.types import JsonValue, StageKey
from trinity.user_code.columns import optional_column

WORD_BYTES = 8
PART_BYTES = 1024 * 1024
TASK_BELIEFS = task_beliefs.c
COLUMNS = ("weak", "strong", "alpha", "beta")
_OWN_BELIEFS = sa.and_(
    in_stage(task_beliefs), TASK_BELIEFS.taskset == sa.bindparam("given_taskset")
)
_SCALARS = sa.select(
    TASK_BELIEFS.capability,
    TASK_BELIEFS.rho,
    sa.func.octet_length(TASK_BELIEFS.weak).label("num_bytes"),
).where(_OWN_BELIEFS)
_PARTS = {
    name: sa.select(
        sa.func.substring(TASK_BELIEFS[name], sa.bindparam("first"), sa.bindparam("count"))
    ).where(_OWN_BELIEFS)
    for name in COLUMNS
}
Numbers = npt.NDArray[np.float64]
ValueT = TypeVar("ValueT")
READ_AT_ONCE = 5_000
PARSE_AT_ONCE = 20
STORED_BYTES = 2 * 1024 * 1024
FEATURE = task_feature.c
_OWN = sa.and_(
    FEATURE.tenant == sa.bindparam("tenant"),
    FEATURE.taskset_id == sa.bindparam("taskset_id"),
    FEATURE.name == sa.bindparam("name"),
)
_SIZE = sa.select(sa.func.octet_length(FEATURE.numbers)).where(_OWN)
_PART = sa.select(
    sa.func.substring(FEATURE.numbers, sa.bindparam("first"), sa.bindparam("count"))
).where(_OWN)
ASSIGNMENT = assignment.c
EXPERIENCE = experience.c
NOT_WON = (ExperienceState.SUPERSEDED, ExperienceState.LATE)


async def has_selection(connection: Connection, key: StageKey, taskset: str) -> bool:
    """Returns True if a ranking or beliefs are stored for the taskset."""
    for table in (task_ranking, task_beliefs):
        statement = sa.select(table.c.taskset).where(
            in_stage(table, key), table.c.taskset == taskset
        )
        if await connection.fetch_first(statement) is not None:
            return True
    return False


async def insert_ranking(
    connection: Connection, key: StageKey, taskset: str, rows_N: IntVector
) -> None:
    """Stores the order of the rows, unless one is stored already."""
    values = {**key_columns(key), "taskset": taskset, "rows": rows_N.astype("<i8").tobytes()}
    await connection.execute(insert(task_ranking).values(values).on_conflict_do_nothing())


async def ranked_rows(
    connection: Connection, key: StageKey, taskset: str, places: Sequence[int]
) -> list[int]:
    """Returns the rows at these places of the ranking; reads only the range that holds them."""
    first, last = min(places), max(places)
    part = sa.func.substring(
        task_ranking.c.rows, first * WORD_BYTES + 1, (last - first + 1) * WORD_BYTES
    )
    statement = sa.select(part).where(
        in_stage(task_ranking, key), task_ranking.c.taskset == taskset
    )
    rows = np.frombuffer(await connection.fetch_value(statement), dtype="<i8")
    return [int(rows[place - first]) for place in places]


async def insert_beliefs(
    connection: Connection, key: StageKey, taskset: str, beliefs: PassRateBeliefs
) -> None:
    """Stores the initial beliefs of a stage, unless some are stored already."""
    values = {
        **key_columns(key),
        "taskset": taskset,
        **dict.fromkeys(COLUMNS, b""),
        "rho": beliefs.rho,
    }
    if await insert_new(connection, task_beliefs, values):
        await _store(connection, key, taskset, weak=beliefs.weak_N, strong=beliefs.strong_N)
        await _store(connection, key, taskset, alpha=beliefs.alpha_N, beta=beliefs.beta_N)


async def load_beliefs(connection: Connection, key: StageKey, taskset: str) -> PassRateBeliefs:
    """Returns the beliefs of the stage's selector."""
    own = stage_params(key, given_taskset=taskset)
    [(capability, rho, num_bytes)] = await connection.fetch_binary(_SCALARS, own)
    loaded = {}
    for name in COLUMNS:
        whole = await _read_parts(connection, _PARTS[name], own, num_bytes)
        loaded[f"{name}_N"] = np.frombuffer(whole, dtype="<f4")
    return PassRateBeliefs(**loaded, capability=capability, rho=rho)


async def update_beliefs(
    connection: Connection, key: StageKey, taskset: str, beliefs: PassRateBeliefs, num_updates: int
) -> None:
    """Stores the beliefs after `num_updates` more explore steps."""
    statement = (
        sa.update(task_beliefs)
        .where(_own(key, taskset))
        .values(
            capability=beliefs.capability,
            rho=beliefs.rho,
            num_updates=task_beliefs.c.num_updates + num_updates,
        )
    )
    await connection.execute(statement)
    await _store(connection, key, taskset, alpha=beliefs.alpha_N, beta=beliefs.beta_N)


async def _store(
    connection: Connection, key: StageKey, taskset: str, **columns: FloatVector
) -> None:
    """Stores columns one by one: a connection keeps memory for its largest statement."""
    for name, numbers_N in columns.items():
        values = {name: numbers_N.astype("<f4").tobytes()}
        await connection.execute(sa.update(task_beliefs).where(_own(key, taskset)).values(values))
        await connection.flush()


def _own(key: StageKey, taskset: str) -> sa.ColumnElement[bool]:
    return sa.and_(in_stage(task_beliefs, key), task_beliefs.c.taskset == taskset)


async def known_features(
    connection: Connection, tenant: str, taskset_id: str, names: Sequence[str]
) -> set[str]:
    """Returns those of the features that are already stored."""
    statement = sa.select(FEATURE.name).where(
        of_taskset(task_feature, tenant, taskset_id),
        FEATURE.name == sa.any_(sa.cast(list(names), ARRAY(sa.Text))),
    )
    return set(await connection.fetch_column(statement))


async def load_features(
    connection: Connection, tenant: str, taskset_id: str, names: Sequence[str]
) -> list[Numbers]:
    """Returns the features as arrays by row, in the order of `names`.

    Raises: PreconditionFailed when one is not stored.
    """
    known = await known_features(connection, tenant, taskset_id, names)
    if missing := [name for name in names if name not in known]:
        raise PreconditionFailed(f"column {missing[0]} of taskset {taskset_id} was not read yet")
    own = {"tenant": tenant, "taskset_id": taskset_id}
    return [await _load(connection, {**own, "name": name}) for name in names]


async def _load(connection: Connection, own: Mapping[str, str]) -> Numbers:
    [(num_bytes,)] = await connection.fetch_binary(_SIZE, own)
    return np.frombuffer(await _read_parts(connection, _PART, own, num_bytes), dtype="<f8")


async def _read_parts(
    connection: Connection, part: sa.Select[Any], own: Mapping[str, object], num_bytes: int
) -> bytearray:
    """Reads in parts: a connection keeps memory for the largest row that it ever received."""
    whole = bytearray()
    for first in range(0, num_bytes, PART_BYTES):
        values = {**own, "first": first + 1, "count": PART_BYTES}
        [(own_part,)] = await connection.fetch_binary(part, values)
        whole += own_part
    return whole


async def read_features(
    connection: Connection, tenant: str, taskset_id: str, num_rows: int, name: str
) -> Numbers:
    """Returns a column of all rows as numbers, which the database extracts in parts.

    Raises: PreconditionFailed naming the first row that has no number there.
    """
    numbers = np.empty(num_rows, dtype="<f8")
    await connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
    own = of_taskset(task, tenant, taskset_id)
    for first in range(0, num_rows, READ_AT_ONCE):
        some = range(first, min(first + READ_AT_ONCE, num_rows))
        try:
            async with connection.savepoint():
                texts = await _texts(connection, own, some, name)
        except psycopg.DataError:  # the JSON holds a null character or an unpaired surrogate
            texts = await _parsed(connection, own, some, name)
        for row, text in texts:
            numbers[row] = _number(text, name, row)
    return numbers


async def _texts(
    connection: Connection, own: sa.ColumnElement[bool], rows: range, name: str
) -> list[tuple[int, str | None]]:
    """Returns the values of a column, or at a path into one, as texts.

    Raises: DataError when any value of a row cannot be a text in Postgres.
    """
    row = sa.cast(task.c.body, sa.JSON)
    text = row[name].as_string()
    if "." in name:
        inner = row[tuple(name.split("."))].as_string()
        text = sa.func.coalesce(text, inner)
    return await _select(connection, own, rows, text)


async def _parsed(
    connection: Connection, own: sa.ColumnElement[bool], rows: range, name: str
) -> list[tuple[int, str | None]]:
    """Returns the same for any JSON, by parsing whole rows; few at a time, as they may be large."""
    texts = []
    for first in range(0, len(rows), PARSE_AT_ONCE):
        some = rows[first : first + PARSE_AT_ONCE]
        for row, body in await _select(connection, own, some, task.c.body):
            texts.append((row, _as_text(optional_column(json.loads(body), name))))
    return texts


async def _select(
    connection: Connection,
    own: sa.ColumnElement[bool],
    rows: range,
    column: sa.ColumnElement[ValueT],
) -> list[tuple[int, ValueT]]:
    statement = (
        sa.select(task.c.index, column)
        .where(own, task.c.index >= rows.start, task.c.index < rows.stop)
        .order_by(task.c.index)
    )
    return [(row, value) for row, value in await connection.fetch(statement)]


def _as_text(value: JsonValue) -> str | None:
    """Returns the value as the database would."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _number(text: str | None, name: str, row: int) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise PreconditionFailed(f"row {row}: column {name} holds no number, but {text!r:.60}")
    return number


async def store_features(
    connection: Connection, tenant: str, taskset_id: str, name: str, numbers: Numbers
) -> None:
    """Stores a column, unless it is stored already; every read of it gives the same."""
    whole = numbers.astype("<f8").tobytes()
    own = {"tenant": tenant, "taskset_id": taskset_id, "name": name}
    if not await insert_new(connection, task_feature, {**own, "numbers": whole[:STORED_BYTES]}):
        return
    for first in range(STORED_BYTES, len(whole), STORED_BYTES):
        more = sa.literal(whole[first : first + STORED_BYTES], sa.LargeBinary)
        grown = sa.update(task_feature).where(
            of_taskset(task_feature, tenant, taskset_id), FEATURE.name == name
        )
        await connection.execute(grown.values(numbers=FEATURE.numbers.op("||")(more)))
        await connection.flush()  # queued statements are in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledOut:
    """A group that has ended and whose rewards its selector has not received."""

    assignment_id: str
    explore_step: int
    task_index: int
    rewards: list[float]


async def last_place_of_batch(connection: Connection, stage: Stage, step: int) -> Place | None:
    """Returns the place of the last group with a row in the batch of a step; None without one."""
    ids = sa.select(batch_item.c.experience_id).where(
        of_line(batch_item, stage, step), batch_item.c.experience_id.is_not(None)
    )
    chosen = await connection.fetch_column(ids)
    statement = (
        sa.select(EXPERIENCE.explore_step, EXPERIENCE.position)
        .where(in_stage(experience, stage.key), id_in(EXPERIENCE.experience_id, chosen))
        .order_by(EXPERIENCE.explore_step.desc(), EXPERIENCE.position.desc())
        .limit(1)
    )
    row = await connection.fetch_first(statement)
    return None if row is None else (row.explore_step, row.position)


async def groups_awaiting_feedback(
    connection: Connection, key: StageKey, taskset: str, up_to: Place
) -> list[RolledOut]:
    """Returns groups up to this place whose rewards the selector has not received, in order."""
    statement = (
        sa.select(ASSIGNMENT.assignment_id, ASSIGNMENT.explore_step, ASSIGNMENT.task_index)
        .where(
            in_stage(assignment, key),
            ASSIGNMENT.awaits_feedback,
            ASSIGNMENT.taskset == taskset,
            ASSIGNMENT.state == AssignmentState.CLOSED,
            sa.tuple_(ASSIGNMENT.explore_step, ASSIGNMENT.position) <= up_to,
        )
        .order_by(ASSIGNMENT.explore_step, ASSIGNMENT.position)
    )
    rows = await connection.fetch(statement)
    rewards = await _rewards(connection, key, [row.assignment_id for row in rows])
    return [value_of(RolledOut, row, rewards=rewards.get(row.assignment_id, [])) for row in rows]


async def _rewards(connection: Connection, key: StageKey, ids: list[str]) -> dict[str, list[float]]:
    """Returns the original rewards of samples in any later state, in the order of the runs."""
    statement = (
        sa.select(EXPERIENCE.assignment_id, EXPERIENCE.reward)
        .where(
            in_stage(experience, key),
            id_in(EXPERIENCE.assignment_id, ids),
            EXPERIENCE.revision == 0,
            EXPERIENCE.reward.is_not(None),
            ~one_of(EXPERIENCE.state, NOT_WON),
        )
        .order_by(EXPERIENCE.run, EXPERIENCE.step, EXPERIENCE.suffix)
    )
    rewards: dict[str, list[float]] = {}
    for row in await connection.fetch(statement):
        rewards.setdefault(row.assignment_id, []).append(row.reward)
    return rewards


async def mark_feedback_received(connection: Connection, key: StageKey, ids: list[str]) -> None:
    """Marks groups as received by the selector."""
    await connection.execute(
        sa.update(assignment)
        .where(in_stage(assignment, key), id_in(ASSIGNMENT.assignment_id, ids))
        .values(awaits_feedback=False)
    )


async def tasks_of_step(
    connection: Connection, key: StageKey, taskset: str, explore_step: int
) -> set[int]:
    """Returns the tasks that an explore step has drawn from a taskset."""
    statement = sa.select(ASSIGNMENT.task_index).where(
        in_stage(assignment, key),
        ASSIGNMENT.kind == "train",
        ASSIGNMENT.taskset == taskset,
        ASSIGNMENT.explore_step == explore_step,
    )
    return set(await connection.fetch_column(statement))
