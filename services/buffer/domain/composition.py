"""Whether a train step's batch can be composed now, and if not, what it waits for."""

import math
from dataclasses import dataclass
from typing import Literal

from services.buffer.domain.stage import Stage, planned_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What there is for the next batch.

    Rows are those of rollouts. In a stage whose order is fixed, `num_rows` counts only those that
    nothing still open precedes.
    """

    num_rows: int
    unfinished: str
    """Which work may still give rows; empty if none is open."""
    next_step: str
    """Why an explore step that may open has not given rows; empty if none may open."""
    refill_rounds: int


@dataclass(frozen=True, slots=True)
class Take:
    """Compose the batch of what there is."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again when something has changed."""

    reason: str
    num_rows: int = 0
    """Rollouts that are there."""
    num_wanted: int = 0
    """Rollouts that the batch is to have; 0 where that is not known."""
    look_again_seconds: float | None = None
    """When to ask again although nothing has changed."""


@dataclass(frozen=True, slots=True)
class Refill:
    """Draw further tasks for the explore step that came out short."""

    num_tasks: int
    refill_round: int


@dataclass(frozen=True, slots=True)
class End:
    """There is no further batch."""

    state: Literal["drained", "failed"]
    reason: str


@dataclass(frozen=True, slots=True)
class VersionWanted:
    """No batch before the trainer has published the weights it has."""

    reason: str


Decision = Take | Wait | Refill | End


MOST_FOR_ONE = 4
"""Tasks drawn for one that gave nothing."""
FEW_RUNS = 32
"""So few say nothing of the next ones."""


def tasks_to_draw(num_missing: int, *, num_runs: int, num_lost: int) -> int:
    """Tasks of which `num_missing` may be expected to give rows, by what came of the newest runs.

    No more than that, as what is left over comes into the next batch, made by older weights.
    """
    if num_runs < FEW_RUNS:
        return num_missing
    survival = max(1 - num_lost / num_runs, 1 / MOST_FOR_ONE)
    return max(num_missing, int(num_missing / survival))


def decide_at_once(stage: Stage, step: int, num_rows: int) -> Take | End | None:
    """What follows from the number of rows alone: a full batch waits for nothing."""
    if step > stage.total_train_steps:
        return End("drained", f"all {stage.total_train_steps} train steps have their batch")
    return Take() if num_rows >= stage.plan.num_rollout_rows else None


def decide(stage: Stage, step: int, supply: Supply) -> Decision:
    """A full batch is taken at once; a short one only when nothing can fill it."""
    return decide_at_once(stage, step, supply.num_rows) or decide_short(stage, step, supply)


def decide_short(stage: Stage, step: int, supply: Supply) -> Decision:
    """The same of a batch that is not full."""
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
