"""Statements on stages and the tasksets they take from."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage, parse_plan
from services.buffer.domain.states import StageState, TasksetKind
from services.buffer.store.database import (
    given,
    given_place,
    in_given_stage,
    key_columns,
    key_from_row,
)
from services.buffer.store.prepared import Asked, Row, execute, fetch, fetch_together
from services.buffer.store.tables import stage, stage_taskset
from trinity.config.plan import StagePlan
from trinity.errors import NotFound, PreconditionFailed
from trinity.limited_log import LimitedLog
from trinity.types import StageKey

limited_log = LimitedLog(logging.getLogger(__name__))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTaskset:
    """A taskset under the name that a stage knows it by."""

    name: str
    taskset_id: str
    kind: TasksetKind
    num_rows: int


class UnreadablePlan(PreconditionFailed):
    """Whoever opened the stage had another version of this program."""

    def __init__(self, text: str, *, key: StageKey, is_open: bool) -> None:
        super().__init__(text)
        self.key = key
        self.is_open = is_open
        """Whether that version may still go on with it."""


def _from_row(row: sa.Row[Any]) -> Stage:
    """Raises: UnreadablePlan."""
    key = key_from_row(row)
    return Stage(
        key=key,
        plan=_plan_of(key, row),
        seed=row.seed,
        state=StageState(row.state),
        reason=row.reason,
        num_rows=row.num_rows,
        total_train_steps=row.total_train_steps,
        total_explore_steps=row.total_explore_steps,
        explore_step=row.explore_step,
        num_drawn=row.num_drawn,
        num_stale=row.num_stale,
        line=row.line,
        incarnation=row.incarnation,
        published=row.published,
        step_version=row.step_version,
        wants_version=row.wants_version,
        recorded_step=row.recorded_step,
        trained_step=row.trained_step,
        finished_step=row.finished_step,
        segment_id=row.segment_id,
    )


def _plan_of(key: StageKey, row: sa.Row[Any]) -> StagePlan:
    try:
        return parse_plan(row.plan)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadablePlan(
            f"stage {key.stage} of experiment {key.experiment_id} has a plan that this version of "
            f"the buffer cannot read: {where}: {first['msg']}; go on with the version that opened "
            "it, or start the experiment anew",
            key=key,
            is_open=row.state == StageState.OPEN,
        ) from error


FIND = sa.select(stage).where(in_given_stage(stage))
_LOCKED = sa.func.hashtextextended(sa.func.concat("stage/", given_place(stage)), 0)
_ALONE = sa.select(sa.func.pg_advisory_xact_lock(_LOCKED))
_SHARED = sa.select(sa.func.pg_advisory_xact_lock_shared(_LOCKED))


async def find_stage(connection: AsyncConnection, key: StageKey) -> Stage | None:
    """The stage as it is, if it is."""
    return stage_of(await fetch(connection, FIND, given(key)))


async def get_stage(connection: AsyncConnection, key: StageKey) -> Stage:
    """The stage as it is.

    Raises: NotFound when it was never opened.
    """
    return opened(key, await find_stage(connection, key))


def opened(key: StageKey, found: Stage | None) -> Stage:
    """The stage that was looked for.

    Raises: NotFound when it was never opened.
    """
    if found is None:
        raise NotFound(f"stage {key.stage} of experiment {key.experiment_id} is not open")
    return found


async def lock_stage(connection: AsyncConnection, key: StageKey) -> Stage:
    """The stage, for this transaction alone: whatever changes a stage's row holds this lock.

    Raises: NotFound when it was never opened.
    """
    _, rows = await fetch_together(connection, *locking(key))
    return opened(key, stage_of(rows))


async def share_stage(connection: AsyncConnection, key: StageKey) -> Stage:
    """The stage, which nobody has alone before this transaction ends; others may share it.

    Raises: NotFound when it was never opened.
    """
    _, rows = await fetch_together(connection, *locking(key, is_shared=True))
    return opened(key, stage_of(rows))


def locking(key: StageKey, *, is_shared: bool = False) -> tuple[Asked, Asked]:
    """Lock a stage, then find it as it is once the lock is ours, whoever changed it meanwhile.

    The lock is not on the row: there, one who wants it alone would wait as long as those who share
    it follow one another. Here they queue behind whoever asked before.
    """
    return (_SHARED if is_shared else _ALONE, given(key)), (FIND, given(key))


def in_order(keys: Iterable[StageKey]) -> list[StageKey]:
    """Stages in the order in which they are locked, so that no two block each other."""
    return sorted(keys, key=lambda key: (key.tenant, key.experiment_id, key.stage))


def stage_of(rows: Sequence[Row]) -> Stage | None:
    """What `FIND` found."""
    return _from_row(rows[0]) if rows else None


async def insert_stage(connection: AsyncConnection, key: StageKey, **values: str | int) -> bool:
    """Insert an open stage; false when it is there already."""
    row = {**key_columns(key), "state": StageState.OPEN, **values}
    statement = insert(stage).values(row).on_conflict_do_nothing().returning(stage.c.stage)
    return (await connection.execute(statement)).first() is not None


async def update_stage(
    connection: AsyncConnection, key: StageKey, **values: str | int | None
) -> None:
    """Change columns of a stage."""
    new = {f"new_{name}": value for name, value in values.items()}
    await execute(connection, _update(tuple(values)), given(key, **new))


@lru_cache
def _update(names: tuple[str, ...]) -> sa.Update:
    new = {name: sa.bindparam(f"new_{name}", type_=stage.c[name].type) for name in names}
    return sa.update(stage).where(in_given_stage(stage)).values(new)


_TASKSETS = (
    sa.select(stage_taskset).where(in_given_stage(stage_taskset)).order_by(stage_taskset.c.name)
)


async def stage_tasksets(connection: AsyncConnection, key: StageKey) -> dict[str, StageTaskset]:
    """The stage's tasksets by name."""
    rows = await fetch(connection, _TASKSETS, given(key))
    return {
        row.name: StageTaskset(
            name=row.name,
            taskset_id=row.taskset_id,
            kind=TasksetKind(row.kind),
            num_rows=row.num_rows,
        )
        for row in rows
    }


async def stages_using(connection: AsyncConnection, tenant: str, taskset_id: str) -> list[StageKey]:
    """Stages that take from a taskset, whatever became of them."""
    statement = sa.select(stage_taskset).where(
        stage_taskset.c.tenant == tenant, stage_taskset.c.taskset_id == taskset_id
    )
    return [key_from_row(row) for row in await connection.execute(statement)]


_UNFINISHED = sa.select(stage).where(stage.c.state == StageState.OPEN).order_by(stage.c.opened_at)


async def list_unfinished(
    connection: AsyncConnection, tenant: str, experiment_id: str
) -> list[Stage]:
    """Stages that are still open; empty names mean all.

    Raises: UnreadablePlan where nobody can tell what a stage needs.
    """
    statement = _UNFINISHED
    if tenant:
        statement = statement.where(stage.c.tenant == tenant)
    if experiment_id:
        statement = statement.where(stage.c.experiment_id == experiment_id)
    return [_from_row(row) for row in await connection.execute(statement)]


async def list_readable(connection: AsyncConnection) -> list[Stage]:
    """All open stages but those whose plans cannot be read, which the log names.

    It is for loops over everybody's stages: one that is forgotten must not end them.
    """
    found = []
    for row in await connection.execute(_UNFINISHED):
        try:
            found.append(_from_row(row))
        except UnreadablePlan as error:
            about = {"tenant": row.tenant, "experiment": row.experiment_id, "stage": row.stage}
            kind = "a stage is passed over: its plan cannot be read"
            limited_log.warning(kind, about, why=str(error))
    return found


async def list_stopped(connection: AsyncConnection, source: StageKey) -> list[Stage]:
    """Stages that failed or were cancelled, of its experiment or with a plan that names that."""
    is_stopped = stage.c.state.in_([StageState.FAILED, StageState.CANCELLED])
    names_it = sa.or_(
        stage.c.experiment_id == source.experiment_id,
        stage.c.plan.contains(source.experiment_id, autoescape=True),
    )
    statement = sa.select(stage).where(stage.c.tenant == source.tenant, is_stopped, names_it)
    return [_from_row(row) for row in await connection.execute(statement)]
