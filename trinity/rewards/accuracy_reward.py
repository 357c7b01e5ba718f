"""Reward 1 for an answer that is mathematically equal to the truth."""

from typing import ClassVar

from trinity.rewards.math_grading import is_equivalent
from trinity.rewards.reward import RewardFn


class AccuracyReward(RewardFn):
    """Grades with math-verify. An answer may stand between tags, in a box, or in prose.

    In prose the words beside a number count: `it is not 5` and `1 in 6` are other answers.
    """

    in_thread: ClassVar[bool] = True

    def __call__(self, *, response: str, truth: str) -> dict[str, float]:
        """Returns part `accuracy`."""
        return {"accuracy": float(is_equivalent(response, str(truth)))}
