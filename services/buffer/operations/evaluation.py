"""Opens evaluations of a version, and summarises those whose runs have all ended."""

from services.buffer import telemetry
from services.buffer.domain.evaluation import metric_names, summarise
from services.buffer.domain.stage import AssignmentKind, Stage
from services.buffer.domain.tasks import EvaluationDone
from services.buffer.store.assignments import NewAssignment, insert_assignments
from services.buffer.store.experiences import run_scores
from services.buffer.store.reports import log_event
from services.buffer.store.stages import stage_tasksets
from services.buffer.store.training import (
    count_failed_runs,
    count_unfinished,
    evaluated_assignments,
    finish_evaluation,
    insert_evaluation,
)
from trinity.runtime.sql import Connection


async def open_evaluations(connection: Connection, stage: Stage, version: int) -> None:
    """Opens evaluations that do not exist yet; positions count through all tasksets."""
    if not stage.plan.needs_rollout:
        return
    stored = await stage_tasksets(connection, stage.key)
    first_position = 0
    for taskset in stage.plan.eval_tasksets:
        num_tasks = stored[taskset.name].num_rows
        if await insert_evaluation(connection, stage.key, version, taskset.name, num_tasks):
            new = [
                NewAssignment(
                    kind=AssignmentKind.EVAL,
                    taskset=taskset.name,
                    task_index=i,
                    explore_step=version,
                    position=first_position + i,
                    refill_round=0,
                    required_version=version,
                    repeat_times=taskset.repeat_times,
                )
                for i in range(num_tasks)
            ]
            await insert_assignments(connection, stage.key, new)
            telemetry.record_drawn_tasks(stage.key, new)
        first_position += num_tasks


async def close_evaluation(
    connection: Connection, stage: Stage, version: int, taskset: str
) -> None:
    """Summarises an evaluation if all of its assignments have ended."""
    if await count_unfinished(connection, stage.key, version, taskset):
        return
    ids = await evaluated_assignments(connection, stage.key, version, taskset)
    scores = await run_scores(connection, stage.key, ids)
    figures = summarise(scores)
    num_tasks = len({score.assignment_id for score in scores})
    num_failed = await count_failed_runs(connection, stage.key, ids)
    seconds = await finish_evaluation(
        connection,
        stage.key,
        version,
        taskset,
        num_tasks=num_tasks,
        num_failed=num_failed,
        figures=figures,
    )
    event = EvaluationDone(
        version=version,
        taskset=taskset,
        num_tasks=num_tasks,
        num_failed=num_failed,
        metrics=figures,
        num_metrics_left_out=len(metric_names(scores)) - len(figures),
        duration_seconds=seconds,
    )
    await log_event(connection, stage.key, event)
