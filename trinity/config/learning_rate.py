"""The learning rate as a pure function of the train step: nothing to save, nothing to resume."""

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict


class LearningRateSchedule(BaseModel):
    """Warm-up from lr/steps to lr, then constant, or a cosine that ends at the last step.

    schedule.at(1, 100)     # never 0: the first step moves the weights
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    lr: float
    kind: Literal["constant", "cosine"]
    warmup_steps: int
    """-1: a fraction of the total, below."""
    warmup_ratio: float
    min_ratio: float

    @property
    def needs_total(self) -> bool:
        """Whether the rate depends on the number of steps."""
        return self.kind == "cosine" or (self.warmup_steps < 0 and self.warmup_ratio > 0)

    def at(self, step: int, total_steps: int | None) -> float:
        """Rate of step `step`, from 1 on; steps beyond the total keep the last step's."""
        if step < 1:
            raise ValueError(f"train steps begin at 1, got {step}")
        if self.needs_total and total_steps is None:
            raise ValueError("this learning rate depends on the number of train steps: give it")
        total = total_steps or 0
        warmup = self.warmup_steps if self.warmup_steps >= 0 else int(self.warmup_ratio * total)
        if step < warmup:
            return self.lr * step / warmup
        if self.kind == "constant":
            return self.lr
        return self.lr * self._cosine(step, start=max(warmup, 1), end=total)

    def _cosine(self, step: int, *, start: int, end: int) -> float:
        progress = min(1.0, (step - start) / (end - start)) if end > start else 0.0
        return self.min_ratio + (1 - self.min_ratio) * (1 + math.cos(math.pi * progress)) / 2
