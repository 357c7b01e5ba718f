"""A user's own reward in one file: partial credit, so that even an untrained model gets some."""

from trinity.rewards import RewardFn


class DigitsReward(RewardFn):
    """Share of the response's characters that are digits."""

    def __call__(self, *, response: str) -> dict[str, float]:
        digits = sum(character.isdigit() for character in response)
        return {"digits": digits / max(1, len(response))}
