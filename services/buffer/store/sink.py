"""Statements that read experiences in the order of their commits."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from services.buffer.domain.stage import ExperienceState
from services.buffer.store.database import of_stage, one_of, stage_params
from services.buffer.store.experiences import PLACE, bodies_at, has_content
from services.buffer.store.schema import experience
from services.buffer.store.stages import lock_stage
from trinity.runtime.sql import Connection
from trinity.types import StageKey

SINK_LOCK_PREFIX = "experience sink"
C = experience.c
_LEFT_OUT = [
    ExperienceState.EVAL,
    ExperienceState.SUPERSEDED,
    ExperienceState.LATE,
    ExperienceState.DELETED,
]
_NEWEST = sa.select(sa.func.coalesce(sa.func.max(C.ready_number), 0)).where(
    of_stage(experience), C.ready_number > sa.bindparam("after", type_=sa.BigInteger)
)
_NEXT = (
    sa.select(C.experience_id, C.ready_number, *PLACE)
    .where(
        has_content(),
        C.revision == 0,
        C.ready_number > sa.bindparam("after", type_=sa.BigInteger),
        C.ready_number <= sa.bindparam("until", type_=sa.BigInteger),
        sa.not_(one_of(C.state, _LEFT_OUT)),
    )
    .order_by(C.ready_number)
    .limit(sa.bindparam("most", type_=sa.Integer))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedExperience:
    """A sample as its run gave it, with its place in the order of commits."""

    number: int
    experience_id: str
    body: bytes


async def newest_committed(connection: Connection, key: StageKey, after: int) -> int:
    """Returns the number of the stage's newest committed sample; 0 if none is above `after`.

    The stage is locked alone, so that no transaction is open that has taken a lower number: every
    sample up to this number is committed, and later ones get higher numbers.
    """
    await lock_stage(connection, key)
    return int(await connection.fetch_value(_NEWEST, stage_params(key, after=after)))


async def committed_after(
    connection: Connection, key: StageKey, *, after: int, until: int, most: int
) -> Sequence[CommittedExperience]:
    """Returns the next samples of training runs that won, in the order of their commits.

    Deleted ones, and those whose contents are removed by `buffer.keep_steps`, are left out.
    """
    values = stage_params(key, after=after, until=until, most=most)
    rows = await connection.fetch(_NEXT, values)
    bodies = await bodies_at(connection, key, rows)
    return [
        CommittedExperience(
            number=row.ready_number,
            experience_id=str(row.experience_id),
            body=bodies[row.experience_id],
        )
        for row in rows
        if row.experience_id in bodies
    ]


async def try_sink_lock(connection: Connection, key: StageKey) -> bool:
    """Tries to become the stage's only writer until the transaction ends."""
    name = f"{SINK_LOCK_PREFIX} {key.tenant} {key.experiment_id} {key.stage}"
    asked = sa.select(sa.func.pg_try_advisory_xact_lock(sa.func.hashtextextended(name, 0)))
    return bool(await connection.fetch_value(asked))
