"""What the pipeline makes of one task's samples: advantages, or a reason to leave them out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trinity.types import FinishReason

FloatVector = npt.NDArray[np.float64]


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


def rewards_of(samples: Sequence[Sample]) -> FloatVector:
    """Rewards of the samples of one task that are compared with one another.

    A prompt that was too long counts as reward 0; its mask keeps it out of the loss. An aborted
    sample says nothing about the policy and does not count.
    """
    rewards = [_reward(sample) for sample in samples if not _why_left_out(sample)]
    return np.array(rewards, dtype=np.float64)


def outcomes_of(samples: Sequence[Sample], advantages: FloatVector) -> list[Outcome]:
    """What comes of the samples, given the advantages that belong to `rewards_of` them.

    Raises: ValueError when these are not one finite number each.
    """
    left_out = [
        Outcome(experience_id=sample.experience_id, advantage=None, reason=reason)
        for sample in samples
        if (reason := _why_left_out(sample))
    ]
    kept = [sample for sample in samples if not _why_left_out(sample)]
    if advantages.shape != (len(kept),):
        raise ValueError(f"it gave an array of shape {advantages.shape} for {len(kept)} rewards")
    if not np.isfinite(advantages).all():
        raise ValueError("it gave values that are not finite numbers")
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
