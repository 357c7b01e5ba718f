"""Statements on members; their silence is measured by the database's clock."""

import uuid
from dataclasses import asdict
from enum import StrEnum
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from services.synchronizer import tables
from services.synchronizer.domain import Role
from services.synchronizer.members import (
    EXPIRY_SECONDS,
    LIVE_SECONDS,
    Member,
    MemberWait,
)
from trinity.rpc.quotas import MOST
from trinity.runtime.sql import Connection, Row

_member = tables.member.c
_now = sa.func.clock_timestamp()
_silent_seconds = sa.cast(
    sa.func.greatest(sa.extract("epoch", _now - _member.last_heard), 0), sa.Double
)


MAX_LISTED = 10_000
_DESCRIBED = ("role", "address", "experiment_id", "stage", "activity", "version")
_REPORTED = (*_DESCRIBED, "pinned_versions", "waits")
_TENANT = sa.bindparam("tenant", type_=sa.Text)


class HeartbeatOutcome(StrEnum):
    """The outcome of a heartbeat."""

    RECORDED = "recorded"
    FOREIGN = "foreign"
    """The id belongs to a member of another role or tenant; nothing changed."""
    TOO_MANY = "too many"
    """The member is new, and its tenant has as many as it may have; nothing changed."""


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
    """Condition: the row is of the member's role and tenant.

    Of a row that the version before wrote only the tenant of its experiment is known.
    """
    own = _member.experiment_id.in_(_experiments_of(tenant))
    unknown = sa.and_(_member.tenant.is_(None), sa.or_(_member.experiment_id.is_(None), own))
    return sa.and_(is_role, sa.or_(_member.tenant == tenant, unknown))


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
        version=row.version,
        pinned_versions=tuple(row.pinned_versions),
        waits=tuple(MemberWait(**wait).aged(row.silent_seconds) for wait in row.waits),
        silent_seconds=row.silent_seconds,
        tenant=row.tenant or "",
    )


async def pinned_versions(
    connection: Connection, experiment_id: uuid.UUID, stage: str
) -> tuple[int, ...]:
    """Returns the distinct versions of a stage that live members use, in order; skips -1 (none)."""
    query = sa.select(_member.version, _member.pinned_versions).where(
        _member.experiment_id == experiment_id,
        _member.stage == stage,
        _silent_seconds <= LIVE_SECONDS,
    )
    used = {v for row in await connection.fetch(query) for v in (row[0], *row[1])}
    return tuple(sorted(v for v in used if v >= 0))
