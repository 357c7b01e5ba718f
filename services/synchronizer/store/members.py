"""Statements on members; their silence is measured by the database's clock."""

import uuid
from dataclasses import asdict
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from services.synchronizer import tables
from services.synchronizer.domain import Role
from services.synchronizer.members import (
    EXPIRY_SECONDS,
    LIVE_SECONDS,
    MAX_MEMBERS_PER_TENANT,
    Member,
    MemberWait,
)
from trinity.errors import QuotaExceeded
from trinity.runtime.sql import Connection, Row

_member = tables.member.c
_now = sa.func.clock_timestamp()
_silent_seconds = sa.cast(
    sa.func.greatest(sa.extract("epoch", _now - _member.last_heard), 0), sa.Double
)


_DESCRIBED = ("role", "address", "experiment_id", "stage", "activity", "version")
_REPORTED = (*_DESCRIBED, "pinned_versions", "waits")


async def record_heartbeat(connection: Connection, member: Member, tenant: str = "") -> bool:
    """Records the heartbeat of a member.

    False, without a change, if the id belongs to a member of another role or tenant.

    Raises: QuotaExceeded when it is a new member of a tenant that has too many.
    """
    values = {
        "tenant": tenant,
        "id": member.id,
        **{name: getattr(member, name) for name in _DESCRIBED},
        "pinned_versions": list(member.pinned_versions),
        "waits": [asdict(wait) for wait in member.waits],
    }
    if await connection.fetch_first(_upsert(tenant), values) is not None:
        return True
    known = sa.select(_member.id).where(_member.id == member.id)
    if await connection.fetch_first(known) is None:
        raise QuotaExceeded(
            f"quota: tenant {tenant} has reported {MAX_MEMBERS_PER_TENANT} members in the last "
            f"{EXPIRY_SECONDS / 60:.0f} minutes, the most that it may: end some"
        )
    return False


@lru_cache(maxsize=16)
def _upsert(tenant: str) -> sa.ClauseElement:
    """Builds the upsert once: it runs more often than all other statements together."""
    names = ("id", *_REPORTED, "tenant")
    reported = [sa.bindparam(name, type_=_member[name].type) for name in names]
    values = sa.select(*reported, _now).where(_has_room(tenant))
    new = pg.insert(tables.member).from_select([*names, "last_heard"], values)
    changed = {name: new.excluded[name] for name in (*_REPORTED, "last_heard", "tenant")}
    is_role = _member.role == new.excluded.role
    return new.on_conflict_do_update(
        index_elements=["id"], set_=changed, where=_same(is_role, tenant)
    ).returning(_member.id)


async def delete_silent(connection: Connection) -> None:
    """Deletes members that have been silent for too long."""
    forgotten = sa.select(_member.id).where(_silent_seconds > EXPIRY_SECONDS)
    await connection.execute(
        sa.delete(tables.member).where(_member.id.in_(forgotten.with_for_update(skip_locked=True)))
    )


async def delete_member(connection: Connection, member: Member, tenant: str = "") -> None:
    """Deletes a member that shuts down, if the row is its own."""
    is_role = _member.role == member.role
    await connection.execute(
        sa.delete(tables.member).where(_member.id == member.id, _same(is_role, tenant))
    )


def _has_room(tenant: str) -> sa.ColumnElement[bool]:
    """Condition: the member is known, or its tenant may have one more."""
    if not tenant:
        return sa.true()
    other = tables.member.alias().c
    known = sa.exists().where(other.id == sa.bindparam("id", type_=_member.id.type))
    count = sa.select(sa.func.count()).where(other.tenant == tenant).scalar_subquery()
    return sa.or_(known, count < MAX_MEMBERS_PER_TENANT)


def _same(is_role: sa.ColumnElement[bool], tenant: str) -> sa.ColumnElement[bool]:
    """Condition: the row is of the member's role and tenant.

    Of a row that the version before wrote only the tenant of its experiment is known.
    """
    if not tenant:
        return is_role
    own = _member.experiment_id.in_(_experiments_of(tenant))
    unknown = sa.and_(_member.tenant.is_(None), sa.or_(_member.experiment_id.is_(None), own))
    return sa.and_(is_role, sa.or_(_member.tenant == tenant, unknown))


def _experiments_of(tenant: str) -> sa.Select[tuple[uuid.UUID]]:
    return sa.select(tables.experiment.c.id).where(tables.experiment.c.tenant == tenant)


async def recently_heard(
    connection: Connection, experiment_id: uuid.UUID | None, tenant: str = ""
) -> tuple[Member, ...]:
    """Returns recently heard members; with an experiment, those that work on it and idle ones.

    With a tenant, only those that work on its experiments: idle ones may be of another tenant.
    """
    query = sa.select(tables.member, _silent_seconds.label("silent_seconds")).where(
        _silent_seconds <= EXPIRY_SECONDS
    )
    if experiment_id is not None:
        query = query.where(
            sa.or_(_member.experiment_id == experiment_id, _member.experiment_id.is_(None))
        )
    if tenant:
        query = query.where(_member.experiment_id.in_(_experiments_of(tenant)))
    rows = await connection.fetch(query.order_by(_member.role, _member.address, _member.id))
    return tuple(_from_row(row) for row in rows)


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
