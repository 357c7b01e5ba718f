"""A small reward for answers in a given format."""

import re
from typing import ClassVar

from trinity.rewards.reward import RewardFn

STRICT_PATTERN = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$"
SCORE = 0.1


class FormatReward(RewardFn):
    """Plus 0.1 if a regular expression matches the whole response, else minus 0.1."""

    in_thread: ClassVar[bool] = False

    def __init__(self, pattern: str = STRICT_PATTERN) -> None:
        self._pattern = re.compile(pattern, re.DOTALL)

    def __call__(self, *, response: str) -> dict[str, float]:
        """Returns part `format_score`."""
        return {"format_score": SCORE if self._pattern.fullmatch(response.strip()) else -SCORE}
