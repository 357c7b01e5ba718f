"""A custom experience operator in one file: a wrong sum is worth its right digits."""

import re

import numpy as np

from trinity.algorithm.advantage.needs import Needs, needs
from trinity.operators import OPERATORS
from trinity.operators.rollouts import Changes, Content, Rollouts

SUM = re.compile(r"(\d+)\+(\d+)=")


@OPERATORS.register_module("near_miss")
@needs(Needs(content=True))
def near_miss(rollouts: Rollouts, *, bonus: float = 0.3) -> Changes:
    """r = bonus times the share of right digits, where r was 0.

    The advantage function sees these rewards; stored experiences keep theirs.
    """
    is_wrong_N = rollouts.rewards == 0
    shares_N = np.array([_share_of_right_digits(content) for content in rollouts.contents])
    return Changes(
        rewards=np.where(is_wrong_N, bonus * shares_N, rollouts.rewards),
        metrics={"near_miss_count": rollouts.group_sums(is_wrong_N & (shares_N > 0))},
    )


def _share_of_right_digits(content: Content) -> float:
    found = SUM.search(content.prompt_text)
    if found is None:
        return 0.0
    right = str(int(found[1]) + int(found[2]))
    said = content.response_text[: len(right)].ljust(len(right))
    return sum(a == b for a, b in zip(right, said, strict=True)) / len(right)
