"""A custom reward in one file: near misses earn something, and long answers do not."""

from trinity.plugins import REWARDS
from trinity.rewards.reward import RewardFn


@REWARDS.register_module("digits_reward")
class DigitsReward(RewardFn):
    """Named parts, summed to the reward: `accuracy`, and `digits` for a wrong answer's right ones.

    `__call__` names what it wants to see; `trinity.rewards.reward.RewardFn` says what there is.
    """

    def __init__(self, digits_weight: float = 0.2) -> None:
        self._digits_weight = digits_weight

    def __call__(self, *, response: str, truth: str) -> dict[str, float]:
        answer, truth = response.strip(), str(truth)
        if answer == truth:
            return {"accuracy": 1.0, "digits": 0.0}
        return {"accuracy": 0.0, "digits": self._digits_weight * share_of_digits(answer, truth)}


def share_of_digits(answer: str, truth: str) -> float:
    """Digits that stand where they should; an answer of another length has none."""
    if len(answer) != len(truth):
        return 0.0
    return sum(mine == theirs for mine, theirs in zip(answer, truth, strict=True)) / len(truth)
