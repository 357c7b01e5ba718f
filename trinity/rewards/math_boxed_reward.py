r"""Accuracy of the last `\boxed{}`, and a deduction for reasoning outside its tags."""

import re
from typing import ClassVar

from trinity.rewards.math_grading import boxed_answer, is_right_answer, last_boxed
from trinity.rewards.reward import RewardFn
from trinity.rewards.tags import final_part

THOUGHT = re.compile(r"\s*<think>(?:(?!</?think>).)*</think>(?:(?!</?think>).)*", re.DOTALL)


class MathBoxedReward(RewardFn):
    r"""`accuracy` is 1 if the last `\boxed{}` holds the truth, else 0.

    with_think: a response that does not begin with exactly one pair of think tags has a
    `format_score` of minus `format_score_coef`, else 0.
    """

    in_thread: ClassVar[bool] = True

    def __init__(self, with_think: bool = False, format_score_coef: float = 0.1) -> None:
        self._with_think = with_think
        self._coefficient = format_score_coef

    def __call__(self, *, response: str, truth: str) -> dict[str, float]:
        """Returns parts `accuracy` and `format_score`."""
        answer = boxed_answer(final_part(response))
        expected = str(truth)
        boxed_truth = last_boxed(expected)
        right = answer is not None and is_right_answer(answer.content, boxed_truth or expected)
        is_bad = self._with_think and not THOUGHT.fullmatch(response)
        return {
            "accuracy": float(right),
            "format_score": -self._coefficient if is_bad else 0.0,
        }
