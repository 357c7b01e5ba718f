"""Opens and summarises evaluations of a version, and ends stages: with the last one, or early."""

from services.buffer import telemetry
from services.buffer.domain.evaluation import metric_names, summarise, with_failed_runs
from services.buffer.domain.stage import AssignmentKind, Stage, StageState
from services.buffer.domain.tasks import EvaluationDone
from services.buffer.store.assignments import NewAssignment, cancel_open, insert_assignments
from services.buffer.store.database import RETENTION_TOPIC, notify, stage_topics
from services.buffer.store.experiences import run_scores
from services.buffer.store.reports import log_event, log_notice
from services.buffer.store.stages import get_stage, stage_tasksets, update_stage
from services.buffer.store.training import (
    cancel_evaluations,
    count_failed_runs,
    count_unfinished,
    evaluated_assignments,
    finish_evaluation,
    insert_evaluation,
    open_versions,
)
from trinity.runtime.sql import Connection


async def finish_if_done(connection: Connection, stage: Stage) -> None:
    """Ends a stage whose training is finished and whose evaluations are all done."""
    current = await get_stage(connection, stage.key)
    if not current.is_open or current.finished_step is None:
        return
    if not await open_versions(connection, stage.key):
        await update_stage(connection, stage.key, state=StageState.FINISHED)
        await notify(connection, *stage_topics(stage.key), RETENTION_TOPIC)


async def end_stage(connection: Connection, stage: Stage, state: StageState, reason: str) -> int:
    """Revokes all work and stores the reason; returns how many assignments were open."""
    num_revoked = await cancel_open(connection, stage.key, reason, tuple(AssignmentKind))
    await cancel_evaluations(connection, stage.key)
    await update_stage(connection, stage.key, state=state, reason=reason)
    await log_notice(connection, stage.key, f"stage {stage.key.stage} {state}: {reason}")
    await notify(connection, *stage_topics(stage.key), RETENTION_TOPIC)
    return num_revoked


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
    failed = await count_failed_runs(connection, stage.key, ids)
    num_failed = sum(failed.values())
    num_runs = len(scores) + num_failed
    if stage.failed_runs_count_zero:
        scores = with_failed_runs(scores, failed)
    repeat_times = {own.name: own.repeat_times for own in stage.plan.eval_tasksets}[taskset]
    figures = summarise(scores, repeat_times)
    num_tasks = len({score.assignment_id for score in scores})
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
        num_runs=num_runs,
        failed_count_zero=stage.failed_runs_count_zero,
        metrics=figures,
        num_metrics_left_out=len(metric_names(scores)) - len(figures),
        duration_seconds=seconds,
    )
    await log_event(connection, stage.key, event)
