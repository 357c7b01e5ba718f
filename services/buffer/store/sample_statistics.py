"""Statements for statistics of generated and trained samples, and for scores of tasks."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from services.buffer.domain.sample_statistics import (
    GeneratedSample,
    SamplePopulation,
    Task,
    TaskDraw,
)
from services.buffer.domain.stage import (
    UNFINISHED_SCOPE,
    UNTRAINED,
    AssignmentKind,
    ExperienceState,
    Stage,
)
from services.buffer.store.database import (
    count_rows,
    id_in,
    in_stage,
    number_in,
    of_line,
    of_stage,
    one_of,
    value_of,
)
from services.buffer.store.runs import won_runs
from services.buffer.store.schema import assignment, batch_item, experience, pipeline_scope
from services.buffer.store.schema import stage as stage_table
from trinity.runtime.sql import Connection, Row
from trinity.types import StageKey

UNSCORED = (ExperienceState.SUPERSEDED, ExperienceState.LATE)
"""States of samples whose runs do not count."""
LARGEST = 1e300
ASSIGNMENT, EXPERIENCE = assignment.c, experience.c
MAX_GROUPS = 1024
"""Limit of groups that are compared together; the newest are taken."""
UNCOUNTED = (ExperienceState.DERIVED, ExperienceState.SUPERSEDED, ExperienceState.LATE)
"""States that do not count; a derived sample is counted by its revision."""
BATCHED = (ExperienceState.BATCHED, ExperienceState.DELETED)
"""States of samples that may have been in a batch; deleted ones may have been trained before."""
USED = batch_item.c


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
        sa.select(
            ASSIGNMENT.assignment_id,
            ASSIGNMENT.taskset,
            ASSIGNMENT.task_index,
            ASSIGNMENT.required_version,
            ASSIGNMENT.repeat_times,
        )
        .where(*_conditions(key, wanted))
        .order_by(ASSIGNMENT.explore_step.desc(), ASSIGNMENT.position.desc())
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
            sa.select(ASSIGNMENT.task_index, sa.func.count().label("number"))
            .where(
                in_stage(assignment, key),
                ASSIGNMENT.kind == kind,
                ASSIGNMENT.taskset == taskset,
                number_in(ASSIGNMENT.task_index, wanted),
            )
            .group_by(ASSIGNMENT.task_index)
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
    """Returns the mean over the samples of each run, without revisions."""
    value = sa.cast(EXPERIENCE.metrics.op("->>")(metric), sa.Float) if metric else EXPERIENCE.reward
    statement = (
        sa.select(EXPERIENCE.assignment_id, EXPERIENCE.run, sa.func.avg(value).label("score"))
        .where(
            of_stage(experience, key),
            id_in(EXPERIENCE.assignment_id, assignment_ids),
            EXPERIENCE.parent_id.is_(None),
            ~one_of(EXPERIENCE.state, UNSCORED),
            value.between(-LARGEST, LARGEST),  # neither absent nor NaN, and their sum is finite
        )
        .group_by(EXPERIENCE.assignment_id, EXPERIENCE.run)
    )
    rows: Iterable[Row] = await connection.fetch(statement)
    return {(row.assignment_id, row.run): row.score for row in rows}


def _conditions(key: StageKey, wanted: DrawFilter) -> list[sa.ColumnElement[bool]]:
    found = [in_stage(assignment, key), ASSIGNMENT.kind == wanted.kind]
    if wanted.taskset:
        found.append(ASSIGNMENT.taskset == wanted.taskset)
    if wanted.versions:
        # The explore step of an evaluation is the version that it measures, and has an index.
        is_evaluation = wanted.kind is AssignmentKind.EVAL
        column = ASSIGNMENT.explore_step if is_evaluation else ASSIGNMENT.required_version
        found.append(number_in(column, wanted.versions))
    return found


async def last_settled_step(connection: Connection, stage: Stage) -> int:
    """Returns the last explore step up to which every sample is batched or finally left out."""
    key = stage.key
    open_steps = [
        sa.select(sa.func.min(ASSIGNMENT.explore_step)).where(
            in_stage(assignment, key), ASSIGNMENT.kind == AssignmentKind.TRAIN, ASSIGNMENT.is_open
        ),
        sa.select(sa.func.min(pipeline_scope.c.explore_step)).where(
            in_stage(pipeline_scope, key), one_of(pipeline_scope.c.state, UNFINISHED_SCOPE)
        ),
        *(
            sa.select(sa.func.min(EXPERIENCE.explore_step)).where(
                in_stage(experience, key), one_of(EXPERIENCE.state, [state])
            )
            for state in UNTRAINED
        ),
    ]
    firsts = sa.select(*(step.scalar_subquery() for step in open_steps))
    row = await connection.fetch_one(firsts)
    return min((step - 1 for step in row if step is not None), default=stage.explore_step)


async def compared_step(connection: Connection, key: StageKey) -> int:
    """Returns the explore step up to which populations were compared."""
    statement = sa.select(stage_table.c.compared_step).where(in_stage(stage_table, key))
    return int(await connection.fetch_value(statement))


async def load_population(
    connection: Connection, stage: Stage, *, after: int, up_to: int
) -> SamplePopulation | None:
    """Returns the population of explore steps `after` + 1 to `up_to`; None without groups."""
    key = stage.key
    statement = (
        sa.select(
            ASSIGNMENT.assignment_id,
            ASSIGNMENT.taskset,
            ASSIGNMENT.task_index,
            ASSIGNMENT.repeat_times,
            ASSIGNMENT.explore_step,
        )
        .where(
            in_stage(assignment, key),
            ASSIGNMENT.kind == AssignmentKind.TRAIN,
            ASSIGNMENT.explore_step > after,
            ASSIGNMENT.explore_step <= up_to,
        )
        .order_by(ASSIGNMENT.explore_step.desc(), ASSIGNMENT.position)
        .limit(MAX_GROUPS)
    )
    groups = await connection.fetch(statement)
    if not groups:
        return None
    tasks = {group.assignment_id: (group.taskset, group.task_index) for group in groups}
    runs_of: Counter[Task] = Counter()
    for group in groups:
        runs_of[tasks[group.assignment_id]] += group.repeat_times
    return SamplePopulation(
        first_step=groups[-1].explore_step,
        last_step=groups[0].explore_step,
        runs_of=runs_of,
        samples=await _samples(connection, stage, tasks),
    )


async def _samples(
    connection: Connection, stage: Stage, tasks: Mapping[str, Task]
) -> Sequence[GeneratedSample]:
    """Returns each sample once, with the outcome of all its revisions."""
    statement = sa.select(
        EXPERIENCE.experience_id,
        EXPERIENCE.assignment_id,
        EXPERIENCE.payload_id,
        EXPERIENCE.state,
        EXPERIENCE.reason,
        EXPERIENCE.reward,
        EXPERIENCE.response_length,
    ).where(
        in_stage(experience, stage.key),
        id_in(EXPERIENCE.assignment_id, tasks),
        ~one_of(EXPERIENCE.state, UNCOUNTED),
    )
    rows_of: dict[str, list[Row]] = defaultdict(list)
    found: Iterable[Row] = await connection.fetch(statement)
    for row in found:
        rows_of[row.payload_id].append(row)
    batched = [
        row.experience_id for rows in rows_of.values() for row in rows if row.state in BATCHED
    ]
    uses = await _count_uses(connection, stage, batched) if batched else {}
    return [_sample(rows, tasks[rows[0].assignment_id], uses) for rows in rows_of.values()]


async def _count_uses(
    connection: Connection, stage: Stage, ids: Iterable[str]
) -> Mapping[str, int]:
    """Counts the rows of each of these samples in the batches of the line."""
    statement = (
        sa.select(USED.experience_id, sa.func.count().label("number"))
        .where(
            of_line(batch_item, stage),
            USED.experience_id.is_not(None),
            id_in(USED.experience_id, ids),
        )
        .group_by(USED.experience_id)
    )
    return {row.experience_id: row.number for row in await connection.fetch(statement)}


def _sample(rows: Sequence[Row], task: Task, uses: Mapping[str, int]) -> GeneratedSample:
    num_uses = sum(uses.get(row.experience_id, 0) for row in rows)
    return value_of(GeneratedSample, rows[0], task=task, num_uses=num_uses)
