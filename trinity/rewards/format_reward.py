"""A small reward for answers in a given format."""

import re
from typing import ClassVar

from trinity.rewards.reward import RewardFn
from trinity.rewards.tags import LAYOUTS, STRICT

SCORE = 0.1


class FormatReward(RewardFn):
    """Plus 0.1 if a regular expression matches the whole response, else minus 0.1."""

    in_thread: ClassVar[bool] = False

    def __init__(self, pattern: str = STRICT) -> None:
        self._layout = LAYOUTS.get(pattern)
        self._pattern = re.compile(pattern, re.DOTALL)

    def __call__(self, *, response: str) -> dict[str, float]:
        """Returns part `format_score`."""
        text = response.strip()
        matches = self._layout.matches(text) if self._layout else self._pattern.fullmatch(text)
        return {"format_score": SCORE if matches else -SCORE}
