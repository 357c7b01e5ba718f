"""Statements on published weights."""

import uuid

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from services.synchronizer import tables
from services.synchronizer.domain import (
    Experiment,
    PublishedVersion,
    VersionKey,
    VersionKind,
    check_publication,
)
from trinity.runtime.sql import Connection, Row

_version = tables.version.c
COLUMNS = (
    _version.stage,
    _version.version,
    _version.incarnation,
    _version.kind,
    _version.base_version,
    _version.path,
    _version.manifest_sha256,
    _version.weights_sha256,
    _version.weights_blake3,
    _version.parent_version,
    _version.offer_address,
    _version.offer_group,
    _version.copy,
    _version.damage,
)


def from_row(row: Row) -> PublishedVersion:
    """Converts a row with `COLUMNS`."""
    return PublishedVersion(
        stage=row.stage,
        version=row.version,
        incarnation=row.incarnation,
        kind=VersionKind(row.kind),
        base_version=row.base_version,
        path=row.path,
        manifest_sha256=row.manifest_sha256,
        weights_sha256=row.weights_sha256,
        weights_blake3=row.weights_blake3,
        parent_version=row.parent_version,
        offer_address=row.offer_address,
        offer_group=row.offer_group,
        copy=row.copy,
        damage=row.damage,
    )


async def publish(connection: Connection, experiment: Experiment, new: PublishedVersion) -> bool:
    """Records weights, under the experiment's lock; False if they were recorded before.

    A later copy replaces an earlier one and has no reported damage.

    Raises: Superseded when a newer incarnation has published; PreconditionFailed when the new one
    contradicts the published one.
    """
    of_stage = _of_stage(experiment.id, new.stage)
    order = (_version.incarnation.desc(), _version.version.desc())
    newest_query = sa.select(_version.incarnation, _version.version).where(of_stage)
    newest = await connection.fetch_first(newest_query.order_by(*order).limit(1))
    same = await connection.fetch_first(sa.select(*COLUMNS).where(of_stage, _is(new)))
    check_publication(
        new,
        same=from_row(same) if same else None,
        newest=(newest.incarnation, newest.version) if newest else None,
    )
    if same is not None:
        return await _replace(connection, experiment, new)
    await connection.execute(
        sa.insert(tables.version).values(
            tenant=experiment.tenant,
            experiment_id=experiment.id,
            available=True,
            **{column.name: getattr(new, column.name) for column in COLUMNS},
        )
    )
    return True


async def _replace(connection: Connection, experiment: Experiment, new: PublishedVersion) -> bool:
    """Replaces an earlier copy; False if there was no earlier one."""
    replaced = (
        *("kind", "base_version", "path", "manifest_sha256"),
        *("offer_address", "offer_group", "copy"),
    )
    changed = await connection.fetch(
        sa.update(tables.version)
        .where(_of_stage(experiment.id, new.stage), _is(new), _version.copy < new.copy)
        .values(available=True, damage="", **{name: getattr(new, name) for name in replaced})
        .returning(_version.version)
    )
    return bool(changed)


async def report_damage(
    connection: Connection, experiment_id: uuid.UUID, key: VersionKey, reason: str
) -> bool:
    """Records the damage of this copy of a version; False if damage is already recorded, or the
    copy was replaced or retired.
    """
    is_copy = sa.and_(_version.copy == key.copy, _version.available, _version.damage == "")
    changed = await connection.fetch(
        sa.update(tables.version)
        .where(_of_stage(experiment_id, key.stage), _is(key), is_copy)
        .values(damage=reason)
        .returning(_version.version)
    )
    return bool(changed)


async def retire(
    connection: Connection,
    experiment: Experiment,
    gone: tuple[VersionKey, ...],
    damage: str = "",
) -> bool:
    """Records that files are gone; False if that was recorded of all of them.

    With `damage`, the versions are lost: they are needed, and there is no other copy.
    """
    numbers = sa.tuple_(_version.stage, _version.incarnation, _version.version)
    changed = await connection.fetch(
        sa.update(tables.version)
        .where(_version.experiment_id == experiment.id, _version.available)
        .where(numbers.in_(_rows_of(gone)))
        .values(available=False, damage=damage)
        .returning(_version.version)
    )
    return bool(changed)


def _rows_of(names: tuple[VersionKey, ...]) -> sa.Select[tuple[str, int, int]]:
    """Returns the names as a query, so that the statement's text is the same for any number."""
    stages = sa.cast([name.stage for name in names], pg.ARRAY(sa.Text))
    incarnations = sa.cast([name.incarnation for name in names], pg.ARRAY(sa.BigInteger))
    numbers = sa.cast([name.version for name in names], pg.ARRAY(sa.BigInteger))
    arrays = sa.func.unnest(stages, incarnations, numbers)
    rows = arrays.table_valued("stage", "incarnation", "version", name="gone").render_derived()
    return sa.select(rows.c.stage, rows.c.incarnation, rows.c.version)


async def numbers(connection: Connection, experiment_id: uuid.UUID, stage: str) -> frozenset[int]:
    """Returns the numbers of all versions that a stage has published."""
    query = sa.select(_version.version).where(_of_stage(experiment_id, stage))
    return frozenset(row.version for row in await connection.fetch(query))


async def available(
    connection: Connection, experiment_id: uuid.UUID, stage: str
) -> tuple[PublishedVersion, ...]:
    """Returns the versions of a stage that can be loaded, oldest first."""
    query = (
        sa.select(*COLUMNS)
        .where(_of_stage(experiment_id, stage), _version.available)
        .order_by(_version.incarnation, _version.version)
    )
    return tuple(from_row(row) for row in await connection.fetch(query))


async def lost(
    connection: Connection, experiment_id: uuid.UUID, stage: str
) -> tuple[PublishedVersion, ...]:
    """Returns the versions of a stage that were damaged and could not be replaced."""
    is_lost = sa.and_(sa.not_(_version.available), _version.damage != "")
    query = (
        sa.select(*COLUMNS)
        .where(_of_stage(experiment_id, stage), is_lost)
        .order_by(_version.incarnation, _version.version)
    )
    return tuple(from_row(row) for row in await connection.fetch(query))


def _of_stage(experiment_id: uuid.UUID, stage: str) -> sa.ColumnElement[bool]:
    return sa.and_(_version.experiment_id == experiment_id, _version.stage == stage)


def _is(version: PublishedVersion | VersionKey) -> sa.ColumnElement[bool]:
    return sa.and_(_version.incarnation == version.incarnation, _version.version == version.version)
