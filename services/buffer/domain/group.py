"""What the pipeline makes of one task's samples: advantages, or a reason to leave them out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trinity.types import FinishReason

FloatVector = npt.NDArray[np.float64]
AdvantageFn = Callable[[FloatVector], FloatVector]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the statistics of a group need."""

    experience_id: str
    reward: float | None
    finish_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Advantage of a sample, or why it is left out."""

    experience_id: str
    advantage: float | None
    reason: str = ""


def shape_group(samples: Sequence[Sample], advantage_fn: AdvantageFn) -> list[Outcome]:
    """Compare the samples of one task with one another.

    A prompt that was too long counts as reward 0; its mask keeps it out of the loss. An aborted
    sample says nothing about the policy and does not count.
    """
    reasons = [_why_left_out(sample) for sample in samples]
    kept = [sample for sample, reason in zip(samples, reasons, strict=True) if not reason]
    rewards = np.array([_reward(sample) for sample in kept], dtype=np.float64)
    advantages = advantage_fn(rewards) if kept else rewards
    if not np.isfinite(advantages).all() or advantages.shape != rewards.shape:
        raise ValueError("the advantage function gave values that are not finite numbers")
    left_out = [
        Outcome(experience_id=sample.experience_id, advantage=None, reason=reason)
        for sample, reason in zip(samples, reasons, strict=True)
        if reason
    ]
    return left_out + [
        Outcome(experience_id=sample.experience_id, advantage=float(advantage))
        for sample, advantage in zip(kept, advantages, strict=True)
    ]


def _reward(sample: Sample) -> float:
    if sample.finish_reason == FinishReason.PROMPT_TRUNCATED or sample.reward is None:
        return 0.0
    return sample.reward


def _why_left_out(sample: Sample) -> str:
    if sample.finish_reason == FinishReason.ABORT:
        return "it was cut off from outside"
    if sample.reward is None and sample.finish_reason != FinishReason.PROMPT_TRUNCATED:
        return "its reward is still awaited"
    return ""
