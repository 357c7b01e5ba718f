"""Statements on published weights."""

import uuid

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.synchronizer import tables
from services.synchronizer.domain import (
    Experiment,
    Version,
    VersionKind,
    VersionName,
    check_publication,
)

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
    _version.parent_version,
    _version.offer_address,
    _version.offer_group,
)


def from_row(columns: sa.RowMapping) -> Version:
    """Converts a row with `COLUMNS`."""
    return Version(
        stage=columns[_version.stage],
        version=columns[_version.version],
        incarnation=columns[_version.incarnation],
        kind=VersionKind(columns[_version.kind]),
        base_version=columns[_version.base_version],
        path=columns[_version.path],
        manifest_sha256=columns[_version.manifest_sha256],
        weights_sha256=columns[_version.weights_sha256],
        parent_version=columns[_version.parent_version],
        offer_address=columns[_version.offer_address],
        offer_group=columns[_version.offer_group],
    )


async def publish(connection: AsyncConnection, experiment: Experiment, new: Version) -> bool:
    """Records weights, under the experiment's lock; False if they were recorded before.

    Raises: Superseded when a newer incarnation has published; PreconditionFailed when the new one
    contradicts what is published.
    """
    of_stage = _of_stage(experiment.id, new.stage)
    order = (_version.incarnation.desc(), _version.version.desc())
    newest_query = sa.select(_version.incarnation, _version.version).where(of_stage)
    newest = (await connection.execute(newest_query.order_by(*order).limit(1))).first()
    same_query = sa.select(*COLUMNS).where(of_stage, _is(new))
    same = (await connection.execute(same_query)).mappings().first()
    check_publication(
        new,
        same=from_row(same) if same else None,
        newest=(newest.incarnation, newest.version) if newest else None,
    )
    if same is not None:
        return False
    await connection.execute(
        sa.insert(tables.version).values(
            tenant=experiment.tenant,
            experiment_id=experiment.id,
            available=True,
            **{column.name: getattr(new, column.name) for column in COLUMNS},
        )
    )
    return True


async def retire(
    connection: AsyncConnection, experiment: Experiment, gone: tuple[VersionName, ...]
) -> bool:
    """Records that files are gone; False if that was recorded of all of them."""
    numbers = sa.tuple_(_version.stage, _version.incarnation, _version.version)
    changed = await connection.execute(
        sa.update(tables.version)
        .where(_version.experiment_id == experiment.id, _version.available)
        .where(numbers.in_([(name.stage, name.incarnation, name.version) for name in gone]))
        .values(available=False)
    )
    return changed.rowcount > 0


async def available(
    connection: AsyncConnection, experiment_id: uuid.UUID, stage: str
) -> tuple[Version, ...]:
    """Returns the versions of a stage that can be loaded, oldest first."""
    query = (
        sa.select(*COLUMNS)
        .where(_of_stage(experiment_id, stage), _version.available)
        .order_by(_version.incarnation, _version.version)
    )
    return tuple(from_row(row) for row in (await connection.execute(query)).mappings())


def _of_stage(experiment_id: uuid.UUID, stage: str) -> sa.ColumnElement[bool]:
    return sa.and_(_version.experiment_id == experiment_id, _version.stage == stage)


def _is(version: Version) -> sa.ColumnElement[bool]:
    return sa.and_(_version.incarnation == version.incarnation, _version.version == version.version)
