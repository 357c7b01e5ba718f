"""Statements on waits that ended: the newest of each experiment are stored."""

import uuid
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from services.synchronizer import tables
from services.synchronizer.domain import Role
from services.synchronizer.members import MAX_CLOSED_WAITS, ClosedWait
from trinity.runtime.sql import Connection, Row

_wait = tables.closed_wait.c
_now = sa.func.clock_timestamp()
_TENANT = sa.bindparam("tenant", type_=sa.Text)
_TOLD = ("number", "role", "address", "stage", "owner", "waits_for", "reason", "waited_seconds")
_COLUMNS = (*_TOLD, "member_id", "experiment_id")


async def add_closed_waits(
    connection: Connection, waits: Sequence[ClosedWait], tenant: str = ""
) -> None:
    """Stores waits that ended, once each, and deletes the oldest beyond the bound.

    An empty tenant means all tenants. A wait for the experiment of another tenant is not stored.
    """
    rows = [
        {
            **{name: getattr(wait, name) for name in _TOLD},
            "member_id": str(wait.member_id),
            "experiment_id": None if wait.experiment_id is None else str(wait.experiment_id),
            "ended_seconds_ago": wait.ended_seconds_ago,
        }
        for wait in waits
    ]
    await connection.execute(_INSERT, {"rows": rows, "tenant": tenant})
    for experiment_id in {wait.experiment_id for wait in waits}:
        await connection.execute(_trim(experiment_id), {"tenant": tenant})


def _insert() -> sa.ClauseElement:
    told = sa.func.jsonb_to_recordset(sa.bindparam("rows", type_=pg.JSONB)).table_valued(
        *(sa.column(name, _wait[name].type) for name in _COLUMNS),
        sa.column("ended_seconds_ago", sa.Double),
    )
    row = told.render_derived("told", with_types=True).c
    known = tables.experiment.c
    mine = sa.and_(known.id == row.experiment_id, sa.or_(_TENANT == "", known.tenant == _TENANT))
    ended_at = _now - sa.func.make_interval(0, 0, 0, 0, 0, 0, row.ended_seconds_ago)
    values = (
        sa.select(
            *(row[name] for name in _COLUMNS), sa.func.coalesce(known.tenant, _TENANT), ended_at
        )
        .select_from(row.number.table.outerjoin(tables.experiment, mine))
        .where(sa.or_(row.experiment_id.is_(None), known.id.is_not(None)))
    )
    return (
        pg.insert(tables.closed_wait)
        .from_select([*_COLUMNS, "tenant", "ended_at"], values)
        .on_conflict_do_nothing()
    )


_INSERT = _insert()


def _trim(experiment_id: uuid.UUID | None) -> sa.ClauseElement:
    """Deletes what is older than the newest of an experiment, or of a tenant's idle members."""
    of_group: tuple[sa.ColumnElement[bool], ...] = (_wait.experiment_id == experiment_id,)
    if experiment_id is None:
        of_group = (_wait.experiment_id.is_(None), _wait.tenant == _TENANT)
    oldest_kept = (
        sa.select(_wait.ended_at)
        .where(*of_group)
        .order_by(_wait.ended_at.desc())
        .offset(MAX_CLOSED_WAITS - 1)
        .limit(1)
    )
    return sa.delete(tables.closed_wait).where(
        *of_group, _wait.ended_at < oldest_kept.scalar_subquery()
    )


async def newest_closed_waits(
    connection: Connection, experiment_id: uuid.UUID | None, tenant: str, limit: int
) -> tuple[ClosedWait, ...]:
    """Returns the newest waits that ended; with an experiment, its own and those of idle members.

    With a tenant, only its own.
    """
    found = await connection.fetch(newest_query(experiment_id, tenant).limit(limit))
    return tuple(map(_from_row, found))


def newest_query(experiment_id: uuid.UUID | None, tenant: str) -> sa.Select[Any]:
    """Returns the query of waits that ended, the newest first."""
    ago: sa.ColumnElement[Any] = sa.extract("epoch", _now - _wait.ended_at)
    query = sa.select(
        tables.closed_wait,
        sa.cast(sa.func.greatest(ago, 0), sa.Double).label("ended_seconds_ago"),
    )
    if experiment_id is not None:
        of_idle = _wait.experiment_id.is_(None)
        query = query.where(sa.or_(_wait.experiment_id == experiment_id, of_idle))
    if tenant:
        query = query.where(_wait.tenant == tenant)
    return query.order_by(_wait.ended_at.desc(), _wait.member_id, _wait.number.desc())


def _from_row(row: Row) -> ClosedWait:
    return ClosedWait(
        number=row.number,
        owner=row.owner,
        waits_for=row.waits_for,
        reason=row.reason,
        waited_seconds=row.waited_seconds,
        ended_seconds_ago=row.ended_seconds_ago,
        experiment_id=None if row.experiment_id is None else uuid.UUID(row.experiment_id),
        stage=row.stage,
        member_id=uuid.UUID(row.member_id),
        role=Role(row.role),
        address=row.address,
    )
