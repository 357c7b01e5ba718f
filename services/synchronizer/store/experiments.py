"""Statements on experiments and their stages."""

import uuid
from collections import defaultdict
from dataclasses import replace

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.dialects import postgresql as pg

from services.synchronizer import tables
from services.synchronizer.domain import (
    DeviceTurn,
    Experiment,
    ExperimentStage,
    ExperimentStageState,
    ExperimentState,
    Role,
)
from services.synchronizer.store import versions
from services.synchronizer.store.database import notify
from trinity.errors import NotFound
from trinity.runtime.sql import Connection, Row

_TURNS = TypeAdapter(DeviceTurn)
_experiment = tables.experiment.c
_stage = tables.stage.c
_version = tables.version.c
_IS_FINAL = sa.and_(
    _version.tenant == _stage.tenant,
    _version.experiment_id == _stage.experiment_id,
    _version.stage == _stage.name,
    _version.incarnation == _stage.final_incarnation,
    _version.version == _stage.final_version,
)


async def insert(connection: Connection, experiment: Experiment, plan: str, directory: str) -> bool:
    """Inserts an experiment; False if its tenant has one with that label."""
    inserted = await connection.fetch_first(
        pg.insert(tables.experiment)
        .values(
            tenant=experiment.tenant,
            id=experiment.id,
            label=experiment.label,
            plan=plan,
            directory=directory,
            state=experiment.state,
            reason=experiment.reason,
            start_count=experiment.start_count,
        )
        .on_conflict_do_nothing(index_elements=["tenant", "label"])
        .returning(_experiment.id)
    )
    if inserted is None:
        return False
    for index, stage in enumerate(experiment.stages):
        await connection.execute(
            sa.insert(tables.stage).values(
                tenant=experiment.tenant,
                experiment_id=experiment.id,
                name=stage.name,
                index=index,
                **_stage_values(stage),
            )
        )
    await notify(connection, experiment.id)
    return True


async def owner_of(
    connection: Connection, directory: str, *, but: tuple[str, str]
) -> tuple[str, str] | None:
    """Returns tenant and label of the experiment that uses a directory, other than `but`.

    Locks the directory: concurrent calls for it wait until this transaction ends.
    """
    key = sa.func.hashtextextended(f"experiments in {directory}", 0)
    await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
    names = sa.tuple_(_experiment.tenant, _experiment.label)
    query = sa.select(_experiment.tenant, _experiment.label).where(
        _experiment.directory == directory, names != but
    )
    found = await connection.fetch_first(query.limit(1))
    return (found.tenant, found.label) if found else None


async def save(connection: Connection, old: Experiment, new: Experiment) -> bool:
    """Saves changes, under the lock of `locked`; False if both are equal."""
    if new == old:
        return False
    await connection.execute(
        sa.update(tables.experiment)
        .where(_experiment.id == new.id)
        .values(state=new.state, reason=new.reason, start_count=new.start_count)
    )
    for before, after in zip(old.stages, new.stages, strict=True):
        if after != before:
            await connection.execute(
                sa.update(tables.stage)
                .where(_stage.experiment_id == new.id, _stage.name == after.name)
                .values(**_stage_values(after))
            )
    await notify(connection, new.id)
    return True


async def save_turn(connection: Connection, experiment: Experiment, turn: DeviceTurn) -> bool:
    """Saves the turn, under the lock of `locked`; False if it has not changed."""
    if turn == experiment.turn:
        return False
    await connection.execute(
        sa.update(tables.experiment)
        .where(_experiment.id == experiment.id)
        .values(turn=_TURNS.dump_python(turn, mode="json"))
    )
    await notify(connection, experiment.id)
    return True


async def replace_plan(
    connection: Connection, experiment_id: uuid.UUID, plan: str, directory: str
) -> None:
    """Stores the plan and the directory that the experiment resumes with."""
    await connection.execute(
        sa.update(tables.experiment)
        .where(_experiment.id == experiment_id)
        .values(plan=plan, directory=directory)
    )


async def locked(connection: Connection, experiment_id: uuid.UUID) -> Experiment:
    """Returns an experiment, locked until this transaction ends.

    Raises: NotFound.
    """
    lock = sa.select(_experiment.id).where(_experiment.id == experiment_id).with_for_update()
    await connection.execute(lock)
    return await get(connection, experiment_id)


async def locked_by_label(connection: Connection, tenant: str, label: str) -> Experiment:
    """Returns an experiment that is known to exist, locked until this transaction ends."""
    query = sa.select(_experiment.id).where(
        _experiment.tenant == tenant, _experiment.label == label
    )
    known = await connection.fetch_one(query.with_for_update())
    return await get(connection, known.id)


async def get(connection: Connection, experiment_id: uuid.UUID) -> Experiment:
    """Returns an experiment.

    Raises: NotFound.
    """
    found = await _load(
        connection, sa.select(tables.experiment).where(_experiment.id == experiment_id)
    )
    if not found:
        raise NotFound(f"there is no experiment {experiment_id}")
    return found[0]


async def plan_of(connection: Connection, experiment_id: uuid.UUID) -> str:
    """Returns the plan of an experiment that is known to exist."""
    query = sa.select(_experiment.plan).where(_experiment.id == experiment_id)
    found = await connection.fetch_one(query)
    return str(found.plan)


async def running(connection: Connection, tenant: str) -> tuple[Experiment, ...]:
    """Returns the running experiments, oldest first; an empty tenant means all tenants."""
    query = sa.select(tables.experiment).where(_experiment.state == ExperimentState.RUNNING)
    if tenant:
        query = query.where(_experiment.tenant == tenant)
    return await _load(connection, query.order_by(_experiment.created_at, _experiment.id))


async def newest(
    connection: Connection, limit: int, *, tenant: str = "", label: str = ""
) -> tuple[Experiment, ...]:
    """Returns experiments in any state, newest first; an empty tenant or label means all."""
    query = sa.select(tables.experiment)
    if tenant:
        query = query.where(_experiment.tenant == tenant)
    if label:
        query = query.where(_experiment.label == label)
    order = (_experiment.created_at.desc(), _experiment.id)
    return await _load(connection, query.order_by(*order).limit(limit))


async def tenant_of(connection: Connection, experiment_id: uuid.UUID) -> str | None:
    """Returns the tenant of an experiment; None if it does not exist."""
    query = sa.select(_experiment.tenant).where(_experiment.id == experiment_id)
    tenant: str | None = await connection.fetch_value(query)
    return tenant


async def _load(
    connection: Connection, query: sa.Select[tuple[object, ...]]
) -> tuple[Experiment, ...]:
    rows = await connection.fetch(query)
    stages = await _stages(connection, [row.id for row in rows])
    return tuple(
        Experiment(
            id=uuid.UUID(row.id),
            tenant=row.tenant,
            label=row.label,
            state=ExperimentState(row.state),
            reason=row.reason,
            stages=tuple(stages[row.id]),
            start_count=row.start_count,
            turn=_TURNS.validate_python(row.turn) if row.turn is not None else None,
        )
        for row in rows
    )


async def _stages(
    connection: Connection, experiment_ids: list[str]
) -> dict[str, list[ExperimentStage]]:
    query = (
        sa.select(tables.stage, *versions.COLUMNS)
        .outerjoin_from(tables.stage, tables.version, _IS_FINAL)
        .where(_stage.experiment_id == sa.any_(sa.cast(experiment_ids, pg.ARRAY(sa.Uuid))))
        .order_by(_stage.index)
    )
    stages: dict[str, list[ExperimentStage]] = defaultdict(list)
    for row in await connection.fetch(query):
        stages[row.experiment_id].append(_stage_from_row(row))
    return stages


def _stage_from_row(row: Row) -> ExperimentStage:
    stage = ExperimentStage(
        name=row.name,
        state=ExperimentStageState(row.state),
        roles=tuple(Role(role) for role in row.roles),
        finished_roles=tuple(Role(role) for role in row.finished_roles),
    )
    if row.final_version is None:
        return stage
    return replace(stage, final_version=versions.from_row(row))


def _stage_values(stage: ExperimentStage) -> dict[str, object]:
    final = stage.final_version
    return {
        "state": stage.state,
        "roles": list(stage.roles),
        "finished_roles": list(stage.finished_roles),
        "final_version": final.version if final else None,
        "final_incarnation": final.incarnation if final else None,
    }
