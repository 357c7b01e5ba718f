"""A small reward for answers that keep to a layout."""

import re
from typing import ClassVar

from trinity.rewards.reward import RewardFn

STRICT_PATTERN = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$"
SCORE = 0.1


class FormatReward(RewardFn):
    """Plus or minus 0.1, by whether the response matches a regular expression as a whole."""

    in_thread: ClassVar[bool] = False

    def __init__(self, pattern: str = STRICT_PATTERN) -> None:
        self._pattern = re.compile(pattern, re.DOTALL)

    def __call__(self, *, response: str) -> dict[str, float]:
        """Part `format_score`."""
        return {"format_score": SCORE if self._pattern.fullmatch(response.strip()) else -SCORE}
