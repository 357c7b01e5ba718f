"""Accuracy of the number after the last `####`, as GSM8K's own answers end."""

import re
from typing import ClassVar

from trinity.rewards.reward import RewardFn

_ANSWER_MARK = re.compile(r"#### (-?[0-9.,]+)")
_END_CHARACTERS = 300
"""The answer is looked for at the end of a response."""


class Gsm8kReward(RewardFn):
    """`accuracy` is 1 if the number after the last `####` is the truth, as written, else 0."""

    in_thread: ClassVar[bool] = False

    def __call__(self, *, response: str, truth: str) -> dict[str, float]:
        """Returns part `accuracy`."""
        answers = _ANSWER_MARK.findall(response[-_END_CHARACTERS:])
        given = answers[-1].replace(",", "") if answers else None
        return {"accuracy": float(given == str(truth).replace(",", "").strip())}
