"""Statements on stages and their tasksets, on the pace of training, and on lost runs."""

import logging
import secrets
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError

from services.buffer.domain.stage import (
    AssignmentKind,
    AssignmentState,
    ExperienceState,
    RunState,
    Stage,
    StageState,
    TasksetKind,
    parse_plan,
)
from services.buffer.store.database import (
    decode_numbers,
    id_in,
    in_stage,
    insert_new,
    key_columns,
    key_from_row,
    of_line,
    of_taskset,
    one_of,
    stage_name,
    stage_params,
    value_of,
)
from services.buffer.store.schema import (
    NOW,
    STAGE_KEY,
    assignment,
    experience,
    run,
    stage,
    stage_taskset,
    step_report,
)
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import NotFound, PreconditionFailed
from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.sql import Connection, Query, Row
from trinity.types import StageKey

limited_log = RateLimitedLog(logging.getLogger(__name__))
FIND = sa.select(stage).where(in_stage(stage))
_LOCKED = sa.func.hashtextextended(sa.func.concat("stage/", stage_name(stage)), 0)
_ALONE = sa.select(sa.func.pg_advisory_xact_lock(_LOCKED))
_SHARED = sa.select(sa.func.pg_advisory_xact_lock_shared(_LOCKED))
_TASKSETS = sa.select(stage_taskset).where(in_stage(stage_taskset)).order_by(stage_taskset.c.name)
_UNFINISHED = sa.select(stage).where(stage.c.state == StageState.OPEN).order_by(stage.c.opened_at)
_ENDED = sa.select(*(stage.c[name] for name in STAGE_KEY)).where(stage.c.state != StageState.OPEN)
STEP_REPORT = step_report.c
SESSION_KEY_BYTES = 32
NEVER = -1.0
RECENT_REPORTS = 11
IDLE_SHARE = "perf/idle_share"
"""The metric of a step."""
RECENT_EXPLORE_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTaskset:
    """A taskset under its name in a stage."""

    name: str
    taskset_id: str
    kind: TasksetKind
    num_rows: int


class UnreadablePlan(PreconditionFailed):
    """A plan that this version cannot read: another version of the buffer opened the stage."""

    def __init__(self, text: str, *, key: StageKey, is_open: bool) -> None:
        super().__init__(text)
        self.key = key
        self.is_open = is_open
        """True if that version could still continue the stage."""


def _from_row(row: Row) -> Stage:
    """Converts a row.

    Raises: UnreadablePlan.
    """
    key = key_from_row(row)
    return value_of(Stage, row, key=key, plan=_plan_of(key, row), state=StageState(row.state))


def _plan_of(key: StageKey, row: Row) -> StagePlan:
    try:
        return parse_plan(row.plan)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadablePlan(
            f"stage {key.stage} of experiment {key.experiment_id} has a plan that this version of "
            f"the buffer cannot read: {where}: {first['msg']}; go on with the version that opened "
            "it, or start the experiment over",
            key=key,
            is_open=row.state == StageState.OPEN,
        ) from error


async def find_stage(connection: Connection, key: StageKey) -> Stage | None:
    """Returns the stage; None if it was never opened."""
    return stage_of(await connection.fetch(FIND, stage_params(key)))


async def get_stage(connection: Connection, key: StageKey) -> Stage:
    """Returns the stage.

    Raises: NotFound when it was never opened.
    """
    return opened(key, await find_stage(connection, key))


def opened(key: StageKey, found: Stage | None) -> Stage:
    """Returns the stage that was found.

    Raises: NotFound when it was never opened.
    """
    if found is None:
        raise NotFound(f"stage {key.stage} of experiment {key.experiment_id} is not open")
    return found


async def lock_stage(connection: Connection, key: StageKey, *, is_shared: bool = False) -> Stage:
    """Locks the stage until this transaction ends; alone, to change the stage's row, or shared.

    Raises: NotFound when it was never opened.
    """
    _, rows = await connection.fetch_together(*locking(key, is_shared=is_shared))
    return opened(key, stage_of(rows))


def locking(key: StageKey, *, is_shared: bool = False) -> tuple[Query, Query]:
    """Returns two statements: lock a stage, then read it, with all changes made before the lock.

    It is an advisory lock. On a row lock an exclusive request would starve while shared holders
    follow one another; advisory locks are granted in the order of the requests.
    """
    return (_SHARED if is_shared else _ALONE, stage_params(key)), (FIND, stage_params(key))


def in_order(keys: Iterable[StageKey]) -> list[StageKey]:
    """Sorts stages in the order in which they are locked, to avoid deadlocks."""
    return sorted(keys, key=lambda key: (key.tenant, key.experiment_id, key.stage))


def stage_of(rows: Sequence[Row]) -> Stage | None:
    """Converts the rows of `FIND`; None without one."""
    return _from_row(rows[0]) if rows else None


async def insert_stage(connection: Connection, key: StageKey, **values: str | int) -> bool:
    """Inserts an open stage; False if it exists already."""
    own = {"state": StageState.OPEN, "session_key": secrets.token_bytes(SESSION_KEY_BYTES)}
    row = {**key_columns(key), **own, **values}
    return await insert_new(connection, stage, row)


async def update_stage(connection: Connection, key: StageKey, **values: str | int | None) -> None:
    """Updates columns of a stage."""
    new = {f"new_{name}": value for name, value in values.items()}
    await connection.execute(_update(tuple(values)), stage_params(key, **new))


@lru_cache
def _update(names: tuple[str, ...]) -> sa.Update:
    new = {name: sa.bindparam(f"new_{name}", type_=stage.c[name].type) for name in names}
    return sa.update(stage).where(in_stage(stage)).values(new)


async def stage_tasksets(connection: Connection, key: StageKey) -> dict[str, StageTaskset]:
    """Returns the tasksets of a stage by name."""
    rows = await connection.fetch(_TASKSETS, stage_params(key))
    return {row.name: value_of(StageTaskset, row, kind=TasksetKind(row.kind)) for row in rows}


async def stages_using(connection: Connection, tenant: str, taskset_id: str) -> list[StageKey]:
    """Returns the stages that use a taskset, in any state."""
    statement = sa.select(stage_taskset).where(of_taskset(stage_taskset, tenant, taskset_id))
    return [key_from_row(row) for row in await connection.fetch(statement)]


async def list_unfinished(connection: Connection, tenant: str, experiment_id: str) -> list[Stage]:
    """Returns the open stages; empty names mean all.

    Raises: UnreadablePlan when the plan of one cannot be read.
    """
    statement = _narrowed(_UNFINISHED, tenant, experiment_id)
    return [_from_row(row) for row in await connection.fetch(statement)]


def _narrowed(statement: sa.Select[Any], tenant: str, experiment_id: str) -> sa.Select[Any]:
    """Restricts a statement to a tenant and an experiment; empty names mean all."""
    if tenant:
        statement = statement.where(stage.c.tenant == tenant)
    if experiment_id:
        statement = statement.where(stage.c.experiment_id == experiment_id)
    return statement


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStage:
    """A stage without its plan, which may be unreadable for this version."""

    key: StageKey
    state: str
    trained_step: int
    recorded_step: int


async def stored_stages(
    connection: Connection, tenant: str, experiment_id: str
) -> Sequence[StoredStage]:
    """Returns stages in the order in which they were opened; empty names mean all."""
    statement = _narrowed(sa.select(stage).order_by(stage.c.opened_at), tenant, experiment_id)
    rows = await connection.fetch(statement)
    return [value_of(StoredStage, row, key=key_from_row(row)) for row in rows]


async def list_readable(connection: Connection) -> list[Stage]:
    """Returns the open stages of all tenants; stages with unreadable plans are logged and skipped.

    For loops over all stages: an abandoned stage must not stop them.
    """
    found = []
    for row in await connection.fetch(_UNFINISHED):
        try:
            found.append(_from_row(row))
        except UnreadablePlan as error:
            about = {"tenant": row.tenant, "experiment": row.experiment_id, "stage": row.stage}
            kind = "a stage is passed over: its plan cannot be read"
            limited_log.warning(kind, about, why=str(error))
    return found


async def ended_keys(connection: Connection) -> list[StageKey]:
    """Returns the stages that are not open, in whatever state."""
    return [key_from_row(row) for row in await connection.fetch(_ENDED)]


async def list_stopped(connection: Connection, source: StageKey) -> list[Stage]:
    """Returns failed and cancelled stages of the experiment, or whose plans name it."""
    is_stopped = one_of(stage.c.state, [StageState.FAILED, StageState.CANCELLED])
    names_it = sa.or_(
        stage.c.experiment_id == source.experiment_id,
        stage.c.plan.contains(source.experiment_id, autoescape=True),
    )
    statement = sa.select(stage).where(stage.c.tenant == source.tenant, is_stopped, names_it)
    return [_from_row(row) for row in await connection.fetch(statement)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPace:
    """The pace of training."""

    age_seconds: float
    """Seconds since the newest step report; -1 before the first."""
    usual_seconds: float
    """Median time between two reports; 0 while there are too few."""
    idle_share: float
    """Mean share of the steps' time in which the trainer waited for a batch; -1 while unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLosses:
    """Lost runs of the newest explore steps."""

    num_runs: int
    num_lost: int
    """Runs that failed or were filtered."""
    reason: str
    """The most frequent reason."""


async def pace(connection: Connection, stage: Stage) -> TrainingPace:
    """Measures the current pace of training, from the newest reports of any incarnation."""
    life = stage.incarnation
    reports = await _reports(connection, stage, life)
    while len(reports) < RECENT_REPORTS and (
        life := await _incarnation_before(connection, stage, life)
    ):
        reports += await _reports(connection, stage, life)
    newest = sorted(reports)[:RECENT_REPORTS]
    ages, idle_shares = [age for age, _ in newest], [share for _, share in newest if share >= 0]
    gaps = [older - newer for newer, older in pairwise(ages)]
    return TrainingPace(
        age_seconds=max(ages[0], 0.0) if ages else NEVER,
        usual_seconds=statistics.median(gaps) if gaps else 0.0,
        idle_share=statistics.mean(idle_shares) if idle_shares else NEVER,
    )


async def _reports(
    connection: Connection, stage: Stage, incarnation: int
) -> list[tuple[float, float]]:
    """Returns age and idle share of an incarnation's newest reports; it trains steps in order.

    The index is by step, not by time. Reading per incarnation skips older reports of the same steps
    when many are trained again.
    """
    statement = (
        sa.select(sa.extract("epoch", NOW - STEP_REPORT.reported_at), STEP_REPORT.metrics)
        .where(of_line(step_report, stage), STEP_REPORT.incarnation == incarnation)
        .order_by(STEP_REPORT.step.desc())
        .limit(RECENT_REPORTS)
    )
    rows = await connection.fetch(statement)
    return [(float(age), decode_numbers(metrics).get(IDLE_SHARE, NEVER)) for age, metrics in rows]


async def _incarnation_before(connection: Connection, stage: Stage, incarnation: int) -> int:
    """Returns the newest earlier incarnation that has reports; 0 without any."""
    statement = sa.select(sa.func.max(STEP_REPORT.incarnation)).where(
        of_line(step_report, stage), STEP_REPORT.incarnation < incarnation
    )
    return await connection.fetch_value(statement) or 0


async def run_losses(connection: Connection, stage: Stage) -> RunLosses:
    """Counts the lost runs of the newest explore steps, over assignments that have ended."""
    a = assignment.c
    ended = sa.select(a.assignment_id, a.repeat_times).where(
        in_stage(assignment, stage.key),
        a.kind == AssignmentKind.TRAIN,
        a.explore_step > stage.explore_step - RECENT_EXPLORE_STEPS,
        one_of(a.state, [AssignmentState.CLOSED, AssignmentState.GIVEN_UP]),
    )
    rows = await connection.fetch(ended)
    ids = [row.assignment_id for row in rows]
    reasons = await _filtered(connection, stage.key, ids)
    reasons += await _given_up(connection, stage.key, ids)
    return RunLosses(
        num_runs=sum(row.repeat_times for row in rows),
        num_lost=len(reasons),
        reason=statistics.mode(reasons) if reasons else "",
    )


async def _filtered(connection: Connection, key: StageKey, ids: list[str]) -> list[str]:
    """Returns a reason for each run with filtered samples."""
    c = experience.c
    statement = (
        sa.select(sa.func.min(c.reason).label("reason"))
        .where(
            in_stage(experience, key),
            id_in(c.assignment_id, ids),
            c.state == ExperienceState.FILTERED,
        )
        .group_by(c.assignment_id, c.run)
    )
    return await connection.fetch_column(statement)


async def _given_up(connection: Connection, key: StageKey, ids: list[str]) -> list[str]:
    statement = sa.select(run.c.reason).where(
        in_stage(run, key), id_in(run.c.assignment_id, ids), run.c.state == RunState.GIVEN_UP
    )
    return await connection.fetch_column(statement)
