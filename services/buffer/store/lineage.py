"""Statements on lineage: the rows of a train step, and the batches that used a sample."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.domain.stage import Stage
from services.buffer.store.database import among, decode_numbers, in_stage
from services.buffer.store.tables import batch_item, run_attempt, step_report, version
from services.buffer.store.training import Version
from trinity.types import StageKey

C = batch_item.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The use of a sample or data row in a batch."""

    line: int
    step: int
    position: int
    advantage: float
    weight: float
    mean_ratio: float | None
    trained_advantage: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A row of a batch without its content."""

    use: Use
    experience_id: str | None
    taskset_id: str | None
    row_index: int | None

    @property
    def data_row(self) -> tuple[str, int] | None:
        """Taskset and index of a data row; None for an experience."""
        if self.taskset_id is None or self.row_index is None:
            return None
        return self.taskset_id, self.row_index


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """An incarnation of the trainer that trained the step."""

    incarnation: int
    metrics: Mapping[str, float]


async def load_uses(
    connection: AsyncConnection, key: StageKey, ids: Iterable[str]
) -> dict[str, list[Use]]:
    """Returns the uses of each of these samples in batches."""
    statement = (
        sa.select(batch_item)
        .where(
            in_stage(batch_item, key),
            C.experience_id.is_not(None),
            among(C.experience_id, ids),
        )
        .order_by(C.line, C.step, C.position)
    )
    uses: dict[str, list[Use]] = defaultdict(list)
    for row in await connection.execute(statement):
        uses[row.experience_id].append(_use(row))
    return uses


async def load_items(
    connection: AsyncConnection, stage: Stage, step: int, *, first: int, count: int
) -> list[Item]:
    """Returns rows of a batch from position `first` on, in order."""
    statement = (
        sa.select(batch_item)
        .where(
            in_stage(batch_item, stage.key),
            C.line == stage.line,
            C.step == step,
            C.position >= first,
            C.position < first + count,
        )
        .order_by(C.position)
    )
    return [
        Item(
            use=_use(row),
            experience_id=row.experience_id,
            taskset_id=row.taskset_id,
            row_index=row.row_index,
        )
        for row in await connection.execute(statement)
    ]


def _use(row: sa.Row[Any]) -> Use:
    return Use(
        line=row.line,
        step=row.step,
        position=row.position,
        advantage=row.advantage,
        weight=row.weight,
        mean_ratio=row.mean_ratio,
        trained_advantage=row.trained_advantage,
    )


async def times_trained(connection: AsyncConnection, stage: Stage, step: int) -> Sequence[Trained]:
    """Returns every incarnation that trained a step, earliest first."""
    c = step_report.c
    statement = (
        sa.select(c.incarnation, c.metrics)
        .where(in_stage(step_report, stage.key), c.line == stage.line, c.step == step)
        .order_by(c.incarnation)
    )
    return [
        Trained(incarnation=row.incarnation, metrics=decode_numbers(row.metrics))
        for row in await connection.execute(statement)
    ]


async def newest_version_up_to(
    connection: AsyncConnection, stage: Stage, most: int
) -> Version | None:
    """Returns the newest weights published on the line, up to a version number."""
    c = version.c
    statement = (
        sa.select(version)
        .where(in_stage(version, stage.key), c.line == stage.line, c.version <= most)
        .order_by(c.version.desc(), c.incarnation.desc())
        .limit(1)
    )
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    return Version(
        version=row.version, incarnation=row.incarnation, weights_sha256=bytes(row.weights_sha256)
    )


async def load_attempt(
    connection: AsyncConnection, key: StageKey, assignment_id: str, run: int, attempt: int
) -> tuple[float, dict[str, float]]:
    """Returns the duration of an attempt in seconds, and its metrics."""
    c = run_attempt.c
    statement = sa.select(c.duration_seconds, c.metrics).where(
        in_stage(run_attempt, key),
        c.assignment_id == assignment_id,
        c.run == run,
        c.attempt == attempt,
    )
    row = (await connection.execute(statement)).one()
    return row.duration_seconds, decode_numbers(row.metrics)
