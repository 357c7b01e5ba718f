"""Statements that read drawings of tasks, and the scores of their runs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from services.buffer.domain.stage import AssignmentKind, ExperienceState
from services.buffer.domain.task_scores import Task, TaskDraw
from services.buffer.store.database import count_rows, id_in, in_stage, number_in, of_stage, one_of
from services.buffer.store.runs import won_runs
from services.buffer.store.schema import assignment, experience
from trinity.runtime.sql import Connection, Row
from trinity.types import StageKey

UNSCORED = (ExperienceState.SUPERSEDED, ExperienceState.LATE)
"""States of samples whose runs do not count."""
LARGEST = 1e300
A, E = assignment.c, experience.c


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawFilter:
    """The drawings that are wanted."""

    kind: AssignmentKind
    taskset: str = ""
    versions: tuple[int, ...] = ()


async def count_draws(connection: Connection, key: StageKey, wanted: DrawFilter) -> int:
    """Counts the drawings that the filter lets through."""
    return await count_rows(connection, assignment, *_conditions(key, wanted))


async def newest_draws(
    connection: Connection, key: StageKey, wanted: DrawFilter, *, limit: int
) -> list[TaskDraw]:
    """Returns the newest drawings, by explore step and position; for an index leads that way."""
    statement = (
        sa.select(A.assignment_id, A.taskset, A.task_index, A.required_version, A.repeat_times)
        .where(*_conditions(key, wanted))
        .order_by(A.explore_step.desc(), A.position.desc())
        .limit(limit)
    )
    rows: Iterable[Row] = await connection.fetch(statement)
    return [
        TaskDraw(
            assignment_id=row.assignment_id,
            task=(row.taskset, row.task_index),
            version=row.required_version,
            num_runs=row.repeat_times,
        )
        for row in rows
    ]


async def draws_by_task(
    connection: Connection, key: StageKey, kind: AssignmentKind, tasks: Iterable[Task]
) -> Mapping[Task, int]:
    """Counts how often each of the tasks was drawn, with any version."""
    indices: dict[str, list[int]] = defaultdict(list)
    for taskset, index in tasks:
        indices[taskset].append(index)
    found: dict[Task, int] = {}
    for taskset, wanted in indices.items():
        statement = (
            sa.select(A.task_index, sa.func.count().label("number"))
            .where(
                in_stage(assignment, key),
                A.kind == kind,
                A.taskset == taskset,
                number_in(A.task_index, wanted),
            )
            .group_by(A.task_index)
        )
        rows: Iterable[Row] = await connection.fetch(statement)
        found |= {(taskset, row.task_index): row.number for row in rows}
    return found


async def scores_of_runs(
    connection: Connection, key: StageKey, assignment_ids: Sequence[str], metric: str
) -> dict[str, list[float]]:
    """Returns the scores of the runs of these assignments; an empty metric is the reward.

    A metric of the run itself precedes the mean over its samples, as in the summary of an
    evaluation.
    """
    scores = await _sample_means(connection, key, assignment_ids, metric)
    if metric:
        for place, run in (await won_runs(connection, key, assignment_ids)).items():
            if metric in run.metrics:
                scores[place] = run.metrics[metric]
    found: dict[str, list[float]] = defaultdict(list)
    for (assignment_id, _), score in scores.items():
        found[assignment_id].append(score)
    return found


async def _sample_means(
    connection: Connection, key: StageKey, assignment_ids: Sequence[str], metric: str
) -> dict[tuple[str, int], float]:
    """Returns the mean over the samples of each run; revisions do not count beside them."""
    value = sa.cast(E.metrics.op("->>")(metric), sa.Float) if metric else E.reward
    statement = (
        sa.select(E.assignment_id, E.run, sa.func.avg(value).label("score"))
        .where(
            of_stage(experience, key),
            id_in(E.assignment_id, assignment_ids),
            E.parent_id.is_(None),
            ~one_of(E.state, UNSCORED),
            value.between(-LARGEST, LARGEST),  # neither absent nor NaN, and their sum is finite
        )
        .group_by(E.assignment_id, E.run)
    )
    rows: Iterable[Row] = await connection.fetch(statement)
    return {(row.assignment_id, row.run): row.score for row in rows}


def _conditions(key: StageKey, wanted: DrawFilter) -> list[sa.ColumnElement[bool]]:
    found = [in_stage(assignment, key), A.kind == wanted.kind]
    if wanted.taskset:
        found.append(A.taskset == wanted.taskset)
    if wanted.versions:
        # The explore step of an evaluation is the version that it measures, and has an index.
        is_evaluation = wanted.kind is AssignmentKind.EVAL
        column = A.explore_step if is_evaluation else A.required_version
        found.append(number_in(column, wanted.versions))
    return found
