"""Statements on members, whose silence the database's clock measures, and on their closed waits."""

import uuid
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from services.synchronizer import tables
from services.synchronizer.domain import Role
from services.synchronizer.members import (
    EXPIRY_SECONDS,
    LIVE_SECONDS,
    MAX_CLOSED_WAITS,
    ClosedWait,
    Member,
    MemberWait,
)
from trinity.runtime.members import MemberPhase
from trinity.runtime.rpc.quotas import MOST
from trinity.runtime.sql import Connection, Row

_wait = tables.closed_wait.c
_now = sa.func.clock_timestamp()
_TENANT = sa.bindparam("tenant", type_=sa.Text)
_TOLD = ("number", "role", "address", "stage", "owner", "waits_for", "reason", "waited_seconds")
_COLUMNS = (*_TOLD, "member_id", "experiment_id")
_member = tables.member.c
_silent_seconds = sa.cast(
    sa.func.greatest(sa.extract("epoch", _now - _member.last_heard), 0), sa.Double
)
MAX_LISTED = 10_000
_DESCRIBED = ("role", "address", "experiment_id", "stage", "activity", "phase", "version")
_REPORTED = (*_DESCRIBED, "pinned_versions", "waits")


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
    """Deletes all but the newest waits of an experiment, or of a tenant's idle members."""
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
    found = await connection.fetch(newest_waits_query(experiment_id, tenant).limit(limit))
    return tuple(map(_wait_from_row, found))


def newest_waits_query(experiment_id: uuid.UUID | None, tenant: str) -> sa.Select[Any]:
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


def _wait_from_row(row: Row) -> ClosedWait:
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


class HeartbeatOutcome(StrEnum):
    """The outcome of a heartbeat."""

    RECORDED = "recorded"
    FOREIGN = "foreign"
    """The id belongs to a member of another role or tenant; the heartbeat is ignored."""
    TOO_MANY = "too many"
    """The member is new, and its tenant has reached its limit; the heartbeat is ignored."""


async def record_heartbeat(
    connection: Connection, member: Member, tenant: str = "", max_members: int | None = None
) -> HeartbeatOutcome:
    """Records the heartbeat of a member; an empty tenant means all tenants.

    New members at the same moment may exceed `max_members` by a few.
    """
    values = {
        "tenant": tenant,
        "id": member.id,
        **{name: getattr(member, name) for name in _DESCRIBED},
        "pinned_versions": list(member.pinned_versions),
        "waits": [asdict(wait) for wait in member.waits],
        "max_members": MOST if max_members is None else max_members,
    }
    if await connection.fetch_first(_upsert(is_bound=bool(tenant)), values) is not None:
        return HeartbeatOutcome.RECORDED
    known = sa.select(_member.id).where(_member.id == member.id)
    if await connection.fetch_first(known) is not None:
        return HeartbeatOutcome.FOREIGN
    return HeartbeatOutcome.TOO_MANY


@lru_cache
def _upsert(*, is_bound: bool) -> sa.ClauseElement:
    """Builds the upsert once: it runs more often than all other statements together."""
    names = ("id", *_REPORTED, "tenant")
    reported = [sa.bindparam(name, type_=_member[name].type) for name in names]
    values = sa.select(*reported, _now).where(_has_room())
    new = pg.insert(tables.member).from_select([*names, "last_heard"], values)
    changed = {name: new.excluded[name] for name in (*_REPORTED, "last_heard", "tenant")}
    is_role = _member.role == new.excluded.role
    own = _same(is_role, _TENANT) if is_bound else is_role
    return new.on_conflict_do_update(index_elements=["id"], set_=changed, where=own).returning(
        _member.id
    )


async def delete_silent(connection: Connection) -> None:
    """Deletes members that have been silent for too long."""
    forgotten = sa.select(_member.id).where(_silent_seconds > EXPIRY_SECONDS)
    await connection.execute(
        sa.delete(tables.member).where(_member.id.in_(forgotten.with_for_update(skip_locked=True)))
    )


async def delete_member(connection: Connection, member: Member, tenant: str = "") -> bool:
    """Deletes a member that shuts down, if the row is its own; False if it is that of another."""
    is_role = _member.role == member.role
    own = _same(is_role, sa.literal(tenant)) if tenant else is_role
    await connection.execute(sa.delete(tables.member).where(_member.id == member.id, own))
    left = sa.select(_member.id).where(_member.id == member.id)
    return await connection.fetch_first(left) is None


def _has_room() -> sa.ColumnElement[bool]:
    """Condition: the member is known, or its tenant may have one more."""
    other = tables.member.alias().c
    known = sa.exists().where(other.id == sa.bindparam("id", type_=_member.id.type))
    count = sa.select(sa.func.count()).where(other.tenant == _TENANT).scalar_subquery()
    return sa.or_(known, count < sa.bindparam("max_members", type_=sa.BigInteger))


def _same(is_role: sa.ColumnElement[bool], tenant: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Condition: the row is of the member's role and tenant."""
    return sa.and_(is_role, _member.tenant == tenant)


def _experiments_of(tenant: sa.ColumnElement[str] | str) -> sa.Select[tuple[uuid.UUID]]:
    return sa.select(tables.experiment.c.id).where(tables.experiment.c.tenant == tenant)


async def recently_heard(
    connection: Connection, experiment_id: uuid.UUID | None, tenant: str = ""
) -> tuple[Member, ...]:
    """Returns recently heard members; with an experiment, those that work on it and idle ones.

    With a tenant, only its own and those that work on its experiments. Of very many, those heard
    of last are returned.
    """
    query = sa.select(tables.member, _silent_seconds.label("silent_seconds")).where(
        _silent_seconds <= EXPIRY_SECONDS
    )
    if experiment_id is not None:
        query = query.where(
            sa.or_(_member.experiment_id == experiment_id, _member.experiment_id.is_(None))
        )
    if tenant:
        works_for_it = _member.experiment_id.in_(_experiments_of(tenant))
        query = query.where(sa.or_(_member.tenant == tenant, works_for_it))
    newest = query.order_by(_member.last_heard.desc(), _member.id).limit(MAX_LISTED)
    found = [_from_row(row) for row in await connection.fetch(newest)]
    return tuple(sorted(found, key=lambda member: (member.role, member.address, member.id)))


def _from_row(row: Row) -> Member:
    return Member(
        id=uuid.UUID(row.id),
        role=Role(row.role),
        address=row.address,
        experiment_id=None if row.experiment_id is None else uuid.UUID(row.experiment_id),
        stage=row.stage,
        activity=row.activity,
        phase=MemberPhase(row.phase),
        version=row.version,
        pinned_versions=tuple(row.pinned_versions),
        waits=tuple(MemberWait(**wait).aged(row.silent_seconds) for wait in row.waits),
        silent_seconds=row.silent_seconds,
        tenant=row.tenant,
    )


async def pinned_versions(
    connection: Connection, experiment_id: uuid.UUID, stage: str
) -> tuple[int, ...]:
    """Returns the distinct versions of a stage that live members use, in order, if not -1."""
    query = sa.select(_member.version, _member.pinned_versions).where(
        _member.experiment_id == experiment_id,
        _member.stage == stage,
        _silent_seconds <= LIVE_SECONDS,
    )
    used = {v for row in await connection.fetch(query) for v in (row[0], *row[1])}
    return tuple(sorted(v for v in used if v >= 0))
