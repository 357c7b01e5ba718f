"""Choices shared by sections: modes, the learning-rate schedule, difficulty selection."""

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from trinity.config.schema.base import Section

Mode = Literal["both", "colocate", "train", "explore", "bench", "serve"]
WITHOUT_TASKS: tuple[Mode, ...] = ("train", "serve")
BY_TURNS: Mode = "colocate"
"""Means `both`, with engine and trainer on one GPU by turns (`StagePlan.takes_turns`)."""
EXPLORING: tuple[Mode, ...] = ("both", "explore")
"""Modes with tasks to roll out."""

Share = Annotated[float, Field(ge=0, le=1)]

ScheduleKind = Literal["constant", "cosine", "linear", "inverse-square-root", "WSD"]
AnnealStyle = Literal["linear", "cosine", "exponential", "minus_sqrt"]
ANNEALED_SHARE = 0.1
"""Share of the steps that WSD anneals unless it is told how many."""


class DifficultyConfig(Section):
    """Parameters that turn pass rates into beliefs about tasks, and beliefs into a choice.

    A belief is a Beta distribution, which starts as Beta(1, 1).
    """

    m: float = Field(default=16.0, gt=0)
    """Weight of one pass rate, in runs."""
    lamb: Share = 0.2
    """How much of a belief is forgotten with each explore step."""
    rho: Share = 0.2
    """Share of a pass rate's weight that goes to the rate predicted from the anchors, which all
    tasks get, rolled out or not; the rest goes to the rate that was seen."""
    target_reward: Share = 1.0
    """The pass rate of the tasks that are wanted most."""
    tau: float = Field(default=1.0, ge=0)
    """Temperature of the choice; at 0 the nearest to the target are taken."""
    do_sample: bool = False
    """Whether a task's pass rate is drawn from its belief; else it is the belief's mean."""
    adaptive_rho: bool = False
    """Whether `rho` halves each time the predictions are off by a quarter or more on average."""


class LearningRateSchedule(BaseModel):
    """Warm-up to lr, then constant or down; Megatron's shapes by Megatron's names.

    schedule.at(1, 100)     # never 0: the first step moves the weights
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    lr: float
    kind: ScheduleKind
    warmup_steps: int
    """-1: a fraction of the total, below."""
    warmup_ratio: float
    min_ratio: float
    anneal_steps: int = -1
    """Last steps, in which WSD goes down; -1: a tenth of the total."""
    anneal_style: AnnealStyle = "exponential"
    warmup_init: float = 0.0
    """Rate that the warm-up goes up from; it is not used itself."""
    begins_after: int = 0
    """Train steps before the first that counts, in which nothing is updated; the total stays."""

    @property
    def needs_total(self) -> bool:
        """True if the rate depends on the number of steps."""
        ends = self.kind in ("cosine", "linear", "WSD")
        return ends or (self.warmup_steps < 0 and self.warmup_ratio > 0)

    def acting(self) -> "LearningRateSchedule":
        """Returns the same schedule, without the values that its kind does not read."""
        by_ratio = self.warmup_steps < 0 and self.warmup_ratio > 0
        steps = self.warmup_steps if self.warmup_steps > 1 else 0  # the first step has its rate
        unread: dict[str, object] = {
            "warmup_steps": -1 if by_ratio else steps,
            "warmup_ratio": self.warmup_ratio if by_ratio else 0.0,
        }
        if not by_ratio and not steps:
            unread["warmup_init"] = 0.0
        if self.kind == "constant":
            unread["min_ratio"] = 0.0
        if self.kind != "WSD":
            unread |= {"anneal_steps": -1, "anneal_style": "exponential"}
        return self.model_copy(update=unread)

    def at(self, step: int, total_steps: int | None) -> float:
        """Rate of step `step`, counted from 1; steps beyond the total keep the last step's."""
        if step < 1:
            raise ValueError(f"train steps begin at 1, got {step}")
        if self.needs_total and total_steps is None:
            raise ValueError("this learning rate depends on the number of train steps: give it")
        step = max(step - self.begins_after, 1)
        total = total_steps or 0
        warmup = self.warmup_steps if self.warmup_steps >= 0 else int(self.warmup_ratio * total)
        if step < warmup:
            return self.warmup_init + (self.lr - self.warmup_init) * step / warmup
        match self.kind:
            case "constant":
                return self.lr
            case "inverse-square-root":
                last = min(step, total) if total else step
                return self.lr * max(self.min_ratio, math.sqrt(max(warmup, 1) / max(last, 1)))
            case "WSD":
                share = self._annealed(step, total)
            case "cosine" | "linear":
                share = self._down(step, start=max(warmup, 1), end=total)
        return self.lr * (self.min_ratio + (1 - self.min_ratio) * share)

    def _down(self, step: int, *, start: int, end: int) -> float:
        progress = min(1.0, (step - start) / (end - start)) if end > start else 0.0
        return 1 - progress if self.kind == "linear" else _half_cosine(progress)

    def _annealed(self, step: int, total: int) -> float:
        """1 until the last steps begin, 0 at the very last."""
        steps = self.anneal_steps if self.anneal_steps >= 0 else int(ANNEALED_SHARE * total)
        begins = total - steps
        if step <= begins or not steps:
            return 1.0
        progress = min(1.0, (step - begins) / steps)
        match self.anneal_style:
            case "linear":
                return 1 - progress
            case "cosine":
                return _half_cosine(progress)
            case "exponential":
                return 2 * math.pow(0.5, progress) - 1
            case "minus_sqrt":
                return 1 - math.sqrt(progress)


def _half_cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2
