"""Statements on the progress log: the events of an experiment, numbered without gaps."""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.events import KINDS, Event, Samples
from services.buffer.store.database import encode_numbers, key_columns, notify, progress_topic
from services.buffer.store.prepared import execute
from services.buffer.store.tables import progress
from trinity.types import JsonValue, StageKey


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """A stored event."""

    number: int
    stage: str
    unix_millis: int
    kind: str
    body: Mapping[str, JsonValue]


_OF_EXPERIMENT = (
    progress.c.tenant == sa.bindparam("tenant"),
    progress.c.experiment_id == sa.bindparam("experiment_id", type_=progress.c.experiment_id.type),
)
_LOCK = sa.select(
    sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(sa.bindparam("topic", type_=sa.Text), 0))
)
_NEWEST = sa.select(sa.func.coalesce(sa.func.max(progress.c.number), 0)).where(*_OF_EXPERIMENT)
_APPEND = (
    sa.insert(progress)
    .values(
        tenant=sa.bindparam("tenant"),
        experiment_id=sa.bindparam("experiment_id", type_=progress.c.experiment_id.type),
        number=_NEWEST.scalar_subquery() + 1,
        stage=sa.bindparam("stage"),
        kind=sa.bindparam("kind"),
        body=sa.bindparam("body", type_=progress.c.body.type),
    )
    .inline()  # no RETURNING of the number
)


async def log_event(connection: AsyncConnection, key: StageKey, event: Event) -> None:
    """Appends an event; when number n is visible, so are all numbers before it."""
    body = dataclasses.asdict(event)
    if "metrics" in body and isinstance(body["metrics"], dict):
        body["metrics"] = encode_numbers(body["metrics"])
    own = {**key_columns(key), "kind": KINDS[type(event)], "body": body}
    topic = progress_topic(key.tenant, key.experiment_id)
    await execute(connection, _LOCK, {"topic": topic})
    await execute(connection, _APPEND, own)
    await notify(connection, topic)


async def forget_samples(connection: AsyncConnection, tenant: str, ids: Collection[str]) -> None:
    """Clears the bodies of events with any of these samples, in all experiments of the tenant."""
    c = progress.c
    nothing: dict[str, JsonValue] = {"samples": [], "experience_ids": []}
    told = c.body["experience_ids"].op("?|")(sa.cast(list(ids), pg.ARRAY(sa.Text)))
    await connection.execute(
        sa.update(progress)
        .where(c.tenant == tenant, c.kind == KINDS[Samples], told)
        .values(body=nothing)
    )


async def load_events(
    connection: AsyncConnection, tenant: str, experiment_id: str, after: int, limit: int
) -> list[LoggedEvent]:
    """Returns events of an experiment after a number, in order."""
    statement = (
        sa.select(progress, (sa.extract("epoch", progress.c.at) * 1000).label("millis"))
        .where(
            progress.c.tenant == tenant,
            progress.c.experiment_id == experiment_id,
            progress.c.number > after,
        )
        .order_by(progress.c.number)
        .limit(limit)
    )
    return [
        LoggedEvent(
            number=row.number,
            stage=row.stage,
            unix_millis=int(row.millis),
            kind=row.kind,
            body=row.body,
        )
        for row in await connection.execute(statement)
    ]
