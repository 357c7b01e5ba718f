"""Decides whether the batch of a train step can be composed now, or why it has to wait."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np

from services.buffer.domain.stage import Stage, planned_rows
from trinity.runtime.members import WaitKind
from trinity.types import FinishReason

NUM_LONG_PROMPTS = "sample/num_long_prompts"
GroupKey = tuple[int, int]
RunKey = tuple[int, int, int]
NUMBER_BYTES = 40
"""Most bytes of a number in a map besides its name, with its prefix and suffix."""
METRICS_BYTES = 384 * 1024
"""Limit for the names of metrics that workflows or operators give, each in three numbers."""
PREFIX = "experience_pipeline"
SUMMED = ("_count", "dropped_all_correct", "dropped_all_wrong")
RATIO = "_ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSupply:
    """Rows and open work for the next batch.

    Rows are those of rollouts. In a stage with fixed order, `num_rows` counts only rows that no
    open work precedes.
    """

    num_rows: int
    unfinished: "BatchWait | None"
    """The wait for the work that may still give rows; None if none is open."""
    next_step_wait: str
    """The reason why an explore step that may open has given no rows; empty if no step may open."""
    refill_rounds: int
    has_trained: bool
    """True if a batch has rows of the newest explore step."""


@dataclass(frozen=True, slots=True)
class ComposeNow:
    """Compose the batch from the rows that are ready."""


@dataclass(frozen=True, slots=True)
class BatchWait:
    """The batch cannot be composed yet: ask again after a change."""

    reason: str
    num_rows: int = 0
    """Rollouts that are ready."""
    num_wanted: int = 0
    """Rollouts that the batch needs; 0 if not known."""
    look_again_seconds: float | None = None
    """Delay after which to ask again even without a change."""
    waits_for: WaitKind = WaitKind.STATE


@dataclass(frozen=True, slots=True)
class RefillTasks:
    """Draw more tasks for the explore step that has too few rows."""

    num_tasks: int
    refill_round: int


@dataclass(frozen=True, slots=True)
class CloseExploreStep:
    """The newest explore step filled some train steps, and the planned others do not exist."""


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """There is no further batch."""

    state: Literal["drained", "failed"]
    reason: str


@dataclass(frozen=True, slots=True)
class VersionRequested:
    """The trainer must publish its current weights before the next batch."""

    reason: str


BatchDecision = ComposeNow | BatchWait | RefillTasks | CloseExploreStep | BatchEnd


MAX_DRAWS_PER_MISSING = 4
"""Most tasks that are drawn to replace one that gave no row."""
MIN_RUNS_FOR_LOSS_RATE = 32
"""With fewer runs than this, the loss rate is not estimated."""


def tasks_to_draw(num_missing: int, *, num_runs: int, num_lost: int) -> int:
    """Returns how many tasks to draw so that about `num_missing` of them give rows.

    The loss rate is that of the newest runs. No more are drawn, because surplus rows go into the
    next batch, where their weights are older.
    """
    if num_runs < MIN_RUNS_FOR_LOSS_RATE:
        return num_missing
    survival = max(1 - num_lost / num_runs, 1 / MAX_DRAWS_PER_MISSING)
    return max(num_missing, int(num_missing / survival))


def decide_full_batch(stage: Stage, step: int, num_rows: int) -> ComposeNow | BatchEnd | None:
    """Returns the decision that follows from the number of rows alone: a full batch never waits."""
    if step > stage.total_train_steps:
        return BatchEnd("drained", f"all {stage.total_train_steps} train steps have their batch")
    return ComposeNow() if num_rows >= stage.plan.num_rollout_rows else None


def decide_batch(stage: Stage, step: int, supply: BatchSupply) -> BatchDecision:
    """Takes a full batch at once, and a short one only when no more rows can come."""
    return decide_full_batch(stage, step, supply.num_rows) or decide_short_batch(
        stage, step, supply
    )


def decide_short_batch(stage: Stage, step: int, supply: BatchSupply) -> BatchDecision:
    """Decides about a batch that is not full."""
    if supply.unfinished is not None:
        return supply.unfinished
    if supply.next_step_wait:
        return BatchWait(supply.next_step_wait)
    planned = planned_rows(stage, step)
    if supply.num_rows >= planned:
        return ComposeNow() if supply.num_rows else BatchEnd("drained", "every task is used up")
    buffer = stage.plan.config.buffer
    if supply.refill_rounds < buffer.max_refill_rounds:
        num_tasks = math.ceil((planned - supply.num_rows) / stage.repeat_times)
        return RefillTasks(num_tasks, supply.refill_rounds + 1)
    if supply.num_rows and buffer.short_batch == "train":
        return ComposeNow()
    if supply.has_trained:
        return CloseExploreStep()
    return BatchEnd(
        "failed",
        f"train step {step} has {supply.num_rows} of {planned} rows after {supply.refill_rounds} "
        "rounds of refill: the other runs failed or were filtered",
    )


def decide_explore_step(
    stage: Stage, step: int, *, num_runs: int, refill_rounds: int, next_step_wait: str
) -> BatchDecision:
    """Decides about the batch of an explore step that is done: it is counted in runs with samples.

    Tasks are drawn in the order of explore steps, so more of them are drawn only after those of
    every step that may open before this one is trained.
    """
    planned = stage.plan.rows_per_explore_step
    if num_runs >= planned:
        return ComposeNow()
    if refill_rounds < stage.plan.config.buffer.max_refill_rounds:
        if next_step_wait:
            return BatchWait(next_step_wait)
        num_tasks = math.ceil((planned - num_runs) / stage.repeat_times)
        return RefillTasks(num_tasks, refill_rounds + 1)
    if num_runs and stage.plan.config.buffer.short_batch == "train":
        return ComposeNow()
    return BatchEnd(
        "failed",
        f"train step {step} has samples of {num_runs} of {planned} runs after {refill_rounds} "
        "rounds of refill: the other runs failed or were filtered",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """The fields of one row that the metrics are computed from."""

    explore_step: int
    position: int
    run: int
    reward: float | None
    response_length: int
    version_min: int | None
    metrics: dict[str, float]
    """Reward parts and metrics of the sample."""
    run_metrics: dict[str, float]
    """Metrics of the run that the sample came from, shared by all samples of the run."""
    finish_reason: str = ""

    @property
    def has_long_prompt(self) -> bool:
        """True if its prompt was too long to be answered; it is never trained on."""
        return self.finish_reason == FinishReason.PROMPT_TRUNCATED


def batch_metrics(rows: Sequence[MeasuredRow], step: int) -> dict[str, float]:
    """Returns metrics of rewards, lengths, versions, and everything that the workflows measured.

    A version's drift is how many train steps older it is than the weights that `step` starts from.
    Rows without a version are counted if there are any: `max_staleness` never leaves them out.
    """
    rewards = [row.reward for row in rows if row.reward is not None]
    lengths = [float(row.response_length) for row in rows]
    versions = [float(row.version_min) for row in rows if row.version_min is not None]
    figures = {
        "num_groups": float(len({(row.explore_step, row.position) for row in rows})),
        "sample/num_runs": float(len({(row.explore_step, row.position, row.run) for row in rows})),
        "sample/num_explore_steps": float(len({row.explore_step for row in rows})),
    }
    if rewards:
        figures |= _spread("reward", rewards)
        figures["group/reward_std"] = _mean_group_std(rows)
    if lengths:
        figures |= _range("response_length", lengths)
    if versions:
        drifts = [step - 1 - version for version in versions]
        figures |= _range("sample/model_version", versions)
        figures |= _range("sample/model_version_drift", drifts)
    if len(versions) < len(rows):
        figures["sample/num_unversioned_rows"] = float(len(rows) - len(versions))
    if num_long := sum(row.has_long_prompt for row in rows):
        figures[NUM_LONG_PROMPTS] = float(num_long)
    measured = _rollout_values(rows)
    names = first_names(measured)
    for name in names:
        figures |= _range(f"rollout/{name}", measured[name])
    if left_out := len(measured) - len(names):
        figures["rollout/num_metrics_left_out"] = float(left_out)
    return figures


def first_names(metrics: Collection[str], max_bytes: int = METRICS_BYTES) -> list[str]:
    """Returns the names in order, as far as they fit; workflows may give each run other names."""
    names = sorted(metrics)
    ends = accumulate(3 * (len(name.encode(errors="replace")) + NUMBER_BYTES) for name in names)
    return names[: sum(end <= max_bytes for end in ends)]


def _range(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}/mean": float(np.mean(values)),
        f"{name}/min": float(np.min(values)),
        f"{name}/max": float(np.max(values)),
    }


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return _range(name, values) | {f"{name}/std": float(np.std(values))}


def _mean_group_std(rows: Iterable[MeasuredRow]) -> float:
    groups: dict[GroupKey, list[float]] = defaultdict(list)
    for row in rows:
        if row.reward is not None:
            groups[row.explore_step, row.position].append(row.reward)
    return float(np.mean([np.std(rewards) for rewards in groups.values()]))


def _rollout_values(rows: Iterable[MeasuredRow]) -> dict[str, list[float]]:
    """Returns measured values by metric; a metric with any non-finite value is left out."""
    values: dict[str, list[float]] = defaultdict(list)
    seen_runs: set[RunKey] = set()
    for row in rows:
        for name, value in row.metrics.items():
            values[name].append(value)
        run = (row.explore_step, row.position, row.run)
        if run not in seen_runs:
            seen_runs.add(run)
            for name, value in row.run_metrics.items():
                values[name].append(value)
    return {name: listed for name, listed in values.items() if np.isfinite(listed).all()}


def pipeline_metrics(groups: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums counts, averages ratios, and gives mean, min and max of all other metrics."""
    values: dict[str, list[float]] = defaultdict(list)
    for figures in groups:
        for name, value in figures.items():
            if np.isfinite(value):
                values[name].append(value)
    merged: dict[str, float] = {}
    names = first_names(values)
    for name in names:
        merged |= _merged(f"{PREFIX}/{name}", values[name])
    if left_out := len(values) - len(names):
        merged[f"{PREFIX}/num_metrics_left_out"] = float(left_out)
    return merged


def _merged(name: str, values: list[float]) -> dict[str, float]:
    if name.endswith(SUMMED):
        return {name: float(np.sum(values))}
    if name.endswith(RATIO):
        return {name: float(np.mean(values))}
    return _range(name, values)
