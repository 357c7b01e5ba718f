"""Reward 1 for exactly the true answer, 0 for any other."""

from typing import ClassVar

from trinity.rewards.reward import RewardFn


class ExactMatchReward(RewardFn):
    """Compares response and truth as text, without surrounding white space."""

    in_thread: ClassVar[bool] = False

    def __init__(self, ignore_case: bool = False) -> None:
        self._ignore_case = ignore_case

    def __call__(self, *, response: str, truth: str) -> dict[str, float]:
        """Returns part `accuracy`."""
        return {"accuracy": float(self._plain(response) == self._plain(str(truth)))}

    def _plain(self, text: str) -> str:
        return text.strip().casefold() if self._ignore_case else text.strip()
