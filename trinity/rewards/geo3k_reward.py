r"""Accuracy of the last `\boxed{}` and thoughts in tags before it, as veRL scores Geometry3K."""

import re
from typing import ClassVar

from trinity.rewards.math_grading import is_right_answer, last_boxed
from trinity.rewards.reward import RewardFn

FORM = re.compile(r"<think>.*</think>.*\\boxed\{.*\}.*", re.DOTALL)


class Geo3kReward(RewardFn):
    r"""`accuracy` is 0.9 if the last `\boxed{}` holds the truth, else 0.

    `format_score` is 0.1 if thoughts in tags stand before it, else 0. format_score_coef is that
    share of the reward; `accuracy` has the rest.
    """

    in_thread: ClassVar[bool] = True

    def __init__(self, format_score_coef: float = 0.1) -> None:
        self._share = format_score_coef

    def __call__(self, *, response: str, truth: str) -> dict[str, float]:
        """Returns parts `accuracy` and `format_score`."""
        answer = last_boxed(response)
        right = answer is not None and is_right_answer(answer, str(truth))
        has_form = FORM.fullmatch(response) is not None
        return {
            "accuracy": (1 - self._share) * right,
            "format_score": self._share * has_form,
        }
