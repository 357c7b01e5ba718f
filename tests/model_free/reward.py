"""A reward that differs from response to response."""

from typing import ClassVar

from trinity.rewards import RewardFn


class LettersReward(RewardFn):
    """Between 0 and 1, by the letters."""

    in_thread: ClassVar[bool] = False

    def __call__(self, *, response: str) -> dict[str, float]:
        """Part `letters`."""
        return {"letters": sum(response.encode()) % 7 / 6}
