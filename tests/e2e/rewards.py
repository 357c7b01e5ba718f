"""Rewards as users write them, in one file."""

from pathlib import Path

from trinity.rewards import RewardFn


class DigitsReward(RewardFn):
    """Share of the response's characters that are digits: some, even from an untrained model."""

    def __call__(self, *, response: str) -> dict[str, float]:
        digits = sum(character.isdigit() for character in response)
        return {"digits": digits / max(1, len(response))}


class BrokenReward(DigitsReward):
    """Raises as long as a file exists."""

    def __init__(self, broken_while: str) -> None:
        self._broken_while = Path(broken_while)

    def __call__(self, *, response: str) -> dict[str, float]:
        if self._broken_while.exists():
            raise ZeroDivisionError("the grader is broken")
        return super().__call__(response=response)
