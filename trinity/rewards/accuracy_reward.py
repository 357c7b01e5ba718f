"""Reward 1 for an answer that is mathematically equal to the truth."""

from collections.abc import Callable
from typing import ClassVar

from trinity.rewards.math_grading import is_equivalent
from trinity.rewards.reward import RewardFn


class AccuracyReward(RewardFn):
    """Grades with math-verify. An answer may stand between tags, in a box, or in prose.

    In prose the words beside a number count: `it is not 5` and `1 in 6` are other answers.
    """

    in_thread: ClassVar[bool] = True

    def __init__(self, answer_parser: Callable[[str], object] | None = None) -> None:
        self.answer_parser = answer_parser
        """Cuts the answer out of the response and out of the truth; a workflow may give one."""

    def __call__(
        self, response: str, prompt: object = None, *, truth: object, **others: object
    ) -> dict[str, float]:
        """Returns part `accuracy`."""
        del prompt, others
        answer: object = response
        if self.answer_parser is not None:
            answer, truth = self.answer_parser(response), self.answer_parser(str(truth))
        return {"accuracy": float(is_equivalent(_text(answer), _text(truth)))}


def _text(answer: object) -> str:
    """Returns an answer as text; of a list of readings, the first."""
    if isinstance(answer, list | tuple):
        return str(answer[0]) if answer else ""
    return "" if answer is None else str(answer)
