"""Estimates the steps, tasks, experiences and tokens that a stage will produce."""

from dataclasses import dataclass

from trinity.config.plan.stage_plan import StagePlan
from trinity.plugins import REWARD_PATHS, WORKFLOW_PATHS

RUNS_PER_RUNNER = 64
"""Runs that mostly wait for the engine; none of them asks anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVolume:
    """The estimates; numbers of tokens are upper bounds, as answers may be shorter."""

    explore_steps: int
    train_steps: int
    tasks: int
    experiences: int
    rollout_tokens: int
    """Prompts and responses of all experiences at their longest."""
    trained_rows: int
    trained_tokens: int
    evaluations: int
    """Number of evaluations of the evaluation tasksets."""


def run_volume(stage: StagePlan, num_rows: int | None) -> RunVolume | None:
    """Returns the volume; None where `num_rows` is needed and unknown.

    `num_rows` counts the tasks; in mode train it counts the rows of the file.
    """
    explores = stage.mode == "explore"
    steps = stage.total_explore_steps if explores else stage.total_train_steps
    is_bounded = steps is not None or stage.mode == "bench"
    if num_rows is None and not is_bounded:
        return None
    rows = num_rows or 0
    train = stage.num_train_steps(rows)
    explore = stage.num_explore_steps(rows) if stage.needs_rollout else 0
    tasks = explore * stage.config.buffer.batch_size if stage.needs_rollout else 0
    experiences = explore * stage.rows_per_explore_step
    longest = stage.max_prompt_tokens + stage.max_response_tokens
    trained = train * (
        stage.num_fresh_rows if stage.trains_explore_steps else stage.train_batch_size
    )
    return RunVolume(
        explore_steps=explore,
        train_steps=train,
        tasks=tasks,
        experiences=experiences,
        rollout_tokens=experiences * longest,
        trained_rows=trained,
        trained_tokens=trained * longest,
        evaluations=_evaluations(stage, explore, train),
    )


def _evaluations(stage: StagePlan, explore_steps: int, train_steps: int) -> int:
    """Counts the first weights, those at the end of each interval, and the last."""
    if not stage.eval_tasksets:
        return 0
    if stage.mode == "explore":
        return int(stage.config.explorer.eval_on_startup)
    interval = stage.config.explorer.eval_interval
    ends = range(interval, explore_steps + 1, interval)
    versions = {stage.required_version(end + 1) for end in ends} - {0} | {train_steps}
    return len(versions) + int(stage.config.explorer.eval_on_startup)


def max_concurrent_runs(stage: StagePlan) -> int:
    """Returns the number per engine, if there is enough to do."""
    return stage.config.explorer.runner_per_model * runs_per_runner(stage)


def runs_per_runner(stage: StagePlan) -> int:
    """Returns how many runs a runner has in progress: one if they may ask tools or judges."""
    configured = stage.config.explorer.runs_per_runner
    if configured is not None:
        return configured
    return 1 if foreign_part(stage) else RUNS_PER_RUNNER


def foreign_part(stage: StagePlan) -> str:
    """Returns a part of the stage's runs that may call other servers, or an empty text."""
    if stage.external_model is not None:
        return "the model, which is served elsewhere"
    for model in stage.auxiliary_models:
        if model.external is not None:
            return f"model `{model.name}`, which is served elsewhere"
    for taskset in stage.tasksets:
        if taskset.workflow not in WORKFLOW_PATHS:
            return f"workflow `{taskset.workflow}`, which is not one of Trinity's"
        if taskset.reward is not None and taskset.reward not in REWARD_PATHS:
            return f"reward `{taskset.reward}`, which is not one of Trinity's"
    return ""
