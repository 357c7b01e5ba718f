"""Statements on the trainer's incarnations, versions and checkpoints, and on evaluations."""

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONPATH

from services.buffer.domain.evaluation import MetricSummary
from services.buffer.domain.stage import AssignmentKind, EvaluationState, RunState, Stage
from services.buffer.store.database import (
    columns_of,
    count_rows,
    id_in,
    in_stage,
    insert_new,
    insert_rows,
    key_columns,
    of_line,
    value_of,
)
from services.buffer.store.schema import (
    NOW,
    assignment,
    checkpoint,
    evaluation,
    incarnation,
    run,
    version,
)
from trinity.config.plan.stage_plan import keeps_best
from trinity.runtime.sql import Connection
from trinity.types import StageKey

RESTORER = str(uuid.UUID(int=0))
"""The trainer id of incarnations that `trinity.run.deploy.restore` begins."""
MAX_REMOVABLE = 200
"""Most checkpoints in one answer; their paths have up to 16 KB each."""
_NEWEST_FIRST = (checkpoint.c.step.desc(), checkpoint.c.incarnation.desc())
_HEADLINE = sa.func.coalesce(
    *(
        sa.func.jsonb_path_query_first(
            evaluation.c.figures, sa.cast(f'$[*] ? (@.name == "{name}").mean', JSONPATH)
        )
        for name in ("accuracy", "reward")
    )
)
"""Mean of the metric by which versions are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedVersion:
    """Published weights."""

    version: int
    incarnation: int
    weights_sha256: bytes
    weights_blake3: bytes = b""
    lineage_sha256: bytes | None = None
    """Digest of the batches that its trainer was handed; None if it did not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A written checkpoint."""

    step: int
    incarnation: int
    path: str
    manifest_sha256: bytes
    lineage_sha256: bytes | None = None
    """The same as of a version."""


async def insert_incarnation(
    connection: Connection, stage: Stage, number: int, trainer_id: str
) -> None:
    """Records a new incarnation of the trainer."""
    values = {**key_columns(stage.key), "incarnation": number, "trainer_id": trainer_id}
    await connection.execute(sa.insert(incarnation).values(values))


async def newest_restore(connection: Connection, key: StageKey) -> int:
    """Returns the incarnation that the newest restore of the database began; 0 without any."""
    statement = sa.select(sa.func.max(incarnation.c.incarnation)).where(
        in_stage(incarnation, key), incarnation.c.trainer_id == RESTORER
    )
    return (await connection.fetch_column(statement))[0] or 0


async def insert_version(connection: Connection, stage: Stage, new: RecordedVersion) -> None:
    """Records published weights; idempotent."""
    values = {**key_columns(stage.key), **columns_of(new), "line": stage.line}
    await insert_rows(connection, version, [values], ignore_existing=True)


async def versions_of(connection: Connection, stage: Stage, number: int) -> list[RecordedVersion]:
    """Returns the weights published under a version number, newest incarnation first."""
    statement = (
        sa.select(version)
        .where(in_stage(version, stage.key), version.c.version == number)
        .order_by(version.c.incarnation.desc())
    )
    return [value_of(RecordedVersion, row) for row in await connection.fetch(statement)]


async def newest_version(
    connection: Connection, stage: Stage, *, up_to: int | None = None
) -> RecordedVersion | None:
    """Returns the newest weights published on this line, up to a version number if given."""
    statement = sa.select(version).where(of_line(version, stage))
    if up_to is not None:
        statement = statement.where(version.c.version <= up_to)
    order = (version.c.version.desc(), version.c.incarnation.desc())
    row = await connection.fetch_first(statement.order_by(*order).limit(1))
    return None if row is None else value_of(RecordedVersion, row)


async def insert_checkpoint(connection: Connection, stage: Stage, new: Checkpoint) -> None:
    """Records a written checkpoint; idempotent."""
    values = {**key_columns(stage.key), **columns_of(new), "line": stage.line, "is_kept": True}
    await insert_rows(connection, checkpoint, [values], ignore_existing=True)


async def kept_checkpoints(connection: Connection, stage: Stage) -> list[Checkpoint]:
    """Returns the checkpoints of the line that can be resumed from, newest first."""
    return await _checkpoints(connection, _of_line(stage, is_kept=True))


async def announce_removable(
    connection: Connection, stage: Stage, new: Checkpoint
) -> list[Checkpoint]:
    """Returns checkpoints whose files may be deleted, newest first, when `new` is committed.

    A later commit of the same incarnation shows that it received the earlier responses, so the
    checkpoints listed in them are removed here. If there are more than fit, later commits list the
    rest.
    """
    c = checkpoint.c
    dropped = _of_line(stage, is_kept=False)
    was_told = sa.and_(c.told_incarnation == new.incarnation, c.told_step < new.step)
    await connection.execute(sa.delete(checkpoint).where(dropped, was_told))
    newest_first = sa.select(c.step, c.incarnation).where(dropped).order_by(*_NEWEST_FIRST)
    is_told = sa.tuple_(c.step, c.incarnation).in_(newest_first.limit(MAX_REMOVABLE))
    told = {"told_step": new.step, "told_incarnation": new.incarnation}
    await connection.execute(sa.update(checkpoint).where(dropped, is_told).values(told))
    return (await _checkpoints(connection, dropped))[:MAX_REMOVABLE]


def _of_line(stage: Stage, *, is_kept: bool) -> sa.ColumnElement[bool]:
    return sa.and_(of_line(checkpoint, stage), checkpoint.c.is_kept == is_kept)


async def _checkpoints(connection: Connection, chosen: sa.ColumnElement[bool]) -> list[Checkpoint]:
    statement = sa.select(checkpoint).where(chosen).order_by(*_NEWEST_FIRST)
    return [value_of(Checkpoint, row) for row in await connection.fetch(statement)]


async def drop_checkpoint(connection: Connection, stage: Stage, old: Checkpoint) -> None:
    """Marks a checkpoint as not kept: its files may be deleted."""
    await connection.execute(
        sa.update(checkpoint)
        .where(
            in_stage(checkpoint, stage.key),
            checkpoint.c.step == old.step,
            checkpoint.c.incarnation == old.incarnation,
        )
        .values(is_kept=False)
    )


async def insert_evaluation(
    connection: Connection, key: StageKey, version: int, taskset: str, num_tasks: int
) -> bool:
    """Opens the evaluation of a version on a taskset; False if it was opened before."""
    own = {**key_columns(key), "version": version, "taskset": taskset}
    new = {"state": EvaluationState.OPEN, "num_tasks": num_tasks, "figures": []}
    return await insert_new(connection, evaluation, own | new)


async def open_versions(connection: Connection, key: StageKey) -> list[int]:
    """Returns the versions that open evaluations are pinned to."""
    statement = (
        sa.select(evaluation.c.version)
        .distinct()
        .where(in_stage(evaluation, key), evaluation.c.state == EvaluationState.OPEN)
        .order_by(evaluation.c.version)
    )
    return await connection.fetch_column(statement)


async def best_versions(connection: Connection, stage: Stage) -> list[int]:
    """Returns the versions that are kept as the best so far, the best first.

    Of equal ones the earlier is better.
    """
    if not keeps_best(stage.plan):
        return []
    statement = (
        sa.select(evaluation.c.version)
        .where(
            in_stage(evaluation, stage.key),
            evaluation.c.taskset == stage.plan.headline_taskset,
            evaluation.c.state == EvaluationState.DONE,
            _HEADLINE.is_not(None),
        )
        .order_by(sa.cast(_HEADLINE, sa.Double).desc(), evaluation.c.version)
        .limit(stage.plan.config.trainer.keep_best)
    )
    return await connection.fetch_column(statement)


async def done_versions(connection: Connection, key: StageKey) -> list[int]:
    """Returns the versions whose evaluations are all done."""
    has_figures = sa.func.bool_and(evaluation.c.state == EvaluationState.DONE)
    statement = (
        sa.select(evaluation.c.version)
        .where(in_stage(evaluation, key))
        .group_by(evaluation.c.version)
        .having(has_figures)
    )
    return await connection.fetch_column(statement)


async def count_unfinished(
    connection: Connection, key: StageKey, version: int, taskset: str
) -> int:
    """Counts the open assignments of an evaluation."""
    return await count_rows(
        connection, assignment, _of_evaluation(key, version, taskset), assignment.c.is_open
    )


def _of_evaluation(key: StageKey, version: int, taskset: str) -> sa.ColumnElement[bool]:
    """Condition: assignments of an evaluation."""
    return sa.and_(
        in_stage(assignment, key),
        assignment.c.kind == AssignmentKind.EVAL,
        assignment.c.explore_step == version,
        assignment.c.taskset == taskset,
    )


async def evaluated_assignments(
    connection: Connection, key: StageKey, version: int, taskset: str
) -> list[str]:
    """Returns the ids of the assignments of an evaluation, in order."""
    statement = (
        sa.select(assignment.c.assignment_id)
        .where(_of_evaluation(key, version, taskset))
        .order_by(assignment.c.position)
    )
    return await connection.fetch_column(statement)


async def count_failed_runs(
    connection: Connection, key: StageKey, assignment_ids: Sequence[str]
) -> dict[str, int]:
    """Counts the runs that were given up, by assignment; those without one are left out."""
    statement = (
        sa.select(run.c.assignment_id, sa.func.count().label("number"))
        .where(
            in_stage(run, key),
            id_in(run.c.assignment_id, assignment_ids),
            run.c.state == RunState.GIVEN_UP,
        )
        .group_by(run.c.assignment_id)
    )
    return {row.assignment_id: row.number for row in await connection.fetch(statement)}


async def finish_evaluation(
    connection: Connection,
    key: StageKey,
    version: int,
    taskset: str,
    *,
    num_tasks: int,
    num_failed: int,
    figures: Sequence[MetricSummary],
) -> float:
    """Stores the metrics of an evaluation; returns its duration in seconds."""
    statement = (
        sa.update(evaluation)
        .where(
            in_stage(evaluation, key),
            evaluation.c.version == version,
            evaluation.c.taskset == taskset,
        )
        .values(
            state=EvaluationState.DONE,
            num_tasks=num_tasks,
            num_failed=num_failed,
            figures=[asdict(figure) for figure in figures],
            done_at=NOW,
        )
        .returning(sa.extract("epoch", evaluation.c.done_at - evaluation.c.opened_at))
    )
    return float(await connection.fetch_value(statement))


async def cancel_evaluations(connection: Connection, key: StageKey) -> None:
    """Cancels open evaluations; they get no metrics."""
    await connection.execute(
        sa.update(evaluation)
        .where(in_stage(evaluation, key), evaluation.c.state == EvaluationState.OPEN)
        .values(state=EvaluationState.CANCELLED, done_at=NOW)
    )
