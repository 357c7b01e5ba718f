"""Statements on the recorded changes that people made to samples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa

from services.buffer.store.database import (
    UUIDS,
    columns_of,
    id_in,
    key_columns,
    of_stage,
    stage_params,
    value_of,
)
from services.buffer.store.schema import sample_change
from trinity.runtime.sql import Connection
from trinity.types import StageKey

SAMPLE_CHANGE = sample_change.c
MAX_CHANGES = 100
"""Most changes of one sample in an answer; the newest ones."""


class Change(StrEnum):
    """An act of a person on a sample."""

    EXCLUDED = "excluded"
    INCLUDED = "included"
    DELETED = "deleted"
    REWARDED = "rewarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeReason:
    """The reason for a change, and the person."""

    reason: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChange:
    """A stored change of one sample."""

    what: str
    reason: str
    by: str
    at: datetime


_GIVEN = ("tenant", "experiment_id", "stage", "what", "reason", "by")
_RECORD = sa.insert(sample_change).from_select(
    [*_GIVEN, "experience_id"],
    sa.select(
        *(sa.bindparam(name, type_=SAMPLE_CHANGE[name].type) for name in _GIVEN),
        sa.func.unnest(sa.bindparam("ids", type_=UUIDS)),
    ),
    include_defaults=False,
)
_LOAD = (
    sa.select(SAMPLE_CHANGE.what, SAMPLE_CHANGE.reason, SAMPLE_CHANGE.by, SAMPLE_CHANGE.at)
    .where(id_in(SAMPLE_CHANGE.experience_id), of_stage(sample_change))
    .order_by(SAMPLE_CHANGE.number.desc())
    .limit(MAX_CHANGES)
)


async def record_change(
    connection: Connection, key: StageKey, ids: Iterable[str], what: Change, why: ChangeReason
) -> None:
    """Records that a person did the same to these samples."""
    values = {**key_columns(key), **columns_of(why), "ids": list(ids), "what": what.value}
    await connection.execute(_RECORD, values)


async def load_sample_changes(
    connection: Connection, key: StageKey, experience_id: str
) -> Sequence[RecordedChange]:
    """Returns the changes of a sample, latest first."""
    rows = await connection.fetch(_LOAD, stage_params(key, ids=[experience_id]))
    return [value_of(RecordedChange, row) for row in rows]
