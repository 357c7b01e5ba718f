"""Rewards as users write them, in one file."""

from trinity.rewards import RewardFn


class DigitsReward(RewardFn):
    """Share of the response's characters that are digits: some, even from an untrained model."""

    def __call__(self, *, response: str) -> dict[str, float]:
        digits = sum(character.isdigit() for character in response)
        return {"digits": digits / max(1, len(response))}
