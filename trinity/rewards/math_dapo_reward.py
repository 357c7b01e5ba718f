"""Plus or minus 1 for the answer, with DAPO's penalty for responses near or over a length limit.

https://arxiv.org/abs/2503.14476
"""

import re
from typing import ClassVar

from trinity.errors import UserError
from trinity.rewards.math_grading import boxed_answer, is_right_answer
from trinity.rewards.reward import RewardFn
from trinity.rewards.tags import final_part

ANSWER = re.compile(r"Answer\s*:\s*([^\n]+)", re.IGNORECASE)


class MathDapoReward(RewardFn):
    r"""`accuracy` is 1 or -1; the answer is the last `\boxed{}`, else after the last `Answer:`.

    enable_overlong_penalty: `format_score` falls from 0 at `max_response_length - cache_length`
    tokens down to minus `penalty_factor` at `max_response_length`, and stays there.
    """

    in_thread: ClassVar[bool] = True

    def __init__(
        self,
        enable_overlong_penalty: bool = False,
        penalty_factor: float = 1.0,
        max_response_length: int | None = None,
        cache_length: int | None = None,
    ) -> None:
        if enable_overlong_penalty and not (max_response_length and cache_length):
            raise UserError(
                "math_dapo_reward: enable_overlong_penalty needs `max_response_length` and "
                "`cache_length` in reward_fn_args, both in tokens"
            )
        self._factor = penalty_factor if enable_overlong_penalty else 0.0
        self._limit = max_response_length or 0
        self._margin = cache_length or 1

    def __call__(self, *, response: str, truth: str, response_length: int) -> dict[str, float]:
        """Returns parts `accuracy` and `format_score`."""
        right = is_right_answer(_answer(response), str(truth))
        return {
            "accuracy": 1.0 if right else -1.0,
            "format_score": -self._factor * self._excess(response_length),
        }

    def _excess(self, response_length: int) -> float:
        """Returns the used share of the margin, 0 to 1."""
        over = response_length - (self._limit - self._margin)
        return min(max(over / self._margin, 0.0), 1.0)


def _answer(response: str) -> str:
    response = final_part(response)
    if (boxed := boxed_answer(response)) is not None:
        return boxed.content
    named = ANSWER.findall(response)
    return str(named[-1]) if named else ""
