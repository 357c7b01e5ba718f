"""Decides whether the batch of a train step can be composed now, and if not, what it waits for."""

import math
from dataclasses import dataclass
from typing import Literal

from services.buffer.domain.stage import Stage, planned_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """Rows and open work for the next batch.

    Rows are those of rollouts. In a stage with fixed order, `num_rows` counts only rows that no
    open work precedes.
    """

    num_rows: int
    unfinished: str
    """Description of the work that may still give rows; empty if none is open."""
    next_step: str
    """The reason why an explore step that may open has given no rows; empty if none may open."""
    refill_rounds: int


@dataclass(frozen=True, slots=True)
class Take:
    """Compose the batch from the rows that are ready."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The batch cannot be composed yet: ask again after a change."""

    reason: str
    num_rows: int = 0
    """Rollouts that are ready."""
    num_wanted: int = 0
    """Rollouts that the batch needs; 0 if not known."""
    look_again_seconds: float | None = None
    """Delay after which to ask again even without a change."""


@dataclass(frozen=True, slots=True)
class Refill:
    """Draw more tasks for the explore step that has too few rows."""

    num_tasks: int
    refill_round: int


@dataclass(frozen=True, slots=True)
class End:
    """There is no further batch."""

    state: Literal["drained", "failed"]
    reason: str


@dataclass(frozen=True, slots=True)
class VersionWanted:
    """The trainer must publish its current weights before the next batch."""

    reason: str


Decision = Take | Wait | Refill | End


MOST_FOR_ONE = 4
"""Most tasks that are drawn to replace one that gave no row."""
FEW_RUNS = 32
"""With fewer runs than this, the loss rate is not estimated."""


def tasks_to_draw(num_missing: int, *, num_runs: int, num_lost: int) -> int:
    """Returns how many tasks to draw so that about `num_missing` of them give rows.

    The loss rate is that of the newest runs. No more are drawn, because surplus rows go into the
    next batch, where their weights are older.
    """
    if num_runs < FEW_RUNS:
        return num_missing
    survival = max(1 - num_lost / num_runs, 1 / MOST_FOR_ONE)
    return max(num_missing, int(num_missing / survival))


def decide_at_once(stage: Stage, step: int, num_rows: int) -> Take | End | None:
    """Returns the decision that follows from the number of rows alone: a full batch never waits."""
    if step > stage.total_train_steps:
        return End("drained", f"all {stage.total_train_steps} train steps have their batch")
    return Take() if num_rows >= stage.plan.num_rollout_rows else None


def decide(stage: Stage, step: int, supply: Supply) -> Decision:
    """Takes a full batch at once, and a short one only when no more rows can come."""
    return decide_at_once(stage, step, supply.num_rows) or decide_short(stage, step, supply)


def decide_short(stage: Stage, step: int, supply: Supply) -> Decision:
    """Decides about a batch that is not full."""
    if supply.unfinished or supply.next_step:
        return Wait(supply.unfinished or supply.next_step)
    planned = planned_rows(stage, step)
    if supply.num_rows >= planned:
        return Take() if supply.num_rows else End("drained", "every task is used up")
    buffer = stage.plan.config.buffer
    if supply.refill_rounds < buffer.max_refill_rounds:
        num_tasks = math.ceil((planned - supply.num_rows) / stage.repeat_times)
        return Refill(num_tasks, supply.refill_rounds + 1)
    if supply.num_rows and buffer.short_batch == "train":
        return Take()
    return End(
        "failed",
        f"train step {step} has {supply.num_rows} of {planned} rows after {supply.refill_rounds} "
        "rounds of refill: the other runs failed or were filtered",
    )
