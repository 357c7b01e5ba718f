"""Accuracy of the text between answer tags, and a small format reward."""

from typing import ClassVar

from trinity.rewards.format_reward import FormatReward
from trinity.rewards.math_grading import is_equivalent
from trinity.rewards.reward import RewardFn
from trinity.rewards.tags import LOOSE


class MathReward(RewardFn):
    """The sum of `accuracy`, 0 or 1, and `format_score`, plus or minus 0.1."""

    in_thread: ClassVar[bool] = True

    def __init__(self, pattern: str = LOOSE) -> None:
        self._format = FormatReward(pattern)

    def __call__(self, *, response: str, truth: str) -> dict[str, float]:
        """Returns parts `accuracy` and `format_score`."""
        return {
            "accuracy": float(is_equivalent(response, str(truth))),
            **self._format(response=response),
        }
