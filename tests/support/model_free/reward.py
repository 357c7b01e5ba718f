"""A reward that differs from response to response, and one that may be broken."""

import logging
from pathlib import Path
from typing import ClassVar

from trinity.rewards import RewardFn

logger = logging.getLogger(__name__)


class LettersReward(RewardFn):
    """Between 0 and 1, by the letters."""

    in_thread: ClassVar[bool] = False

    def __call__(self, *, response: str) -> dict[str, float]:
        """Part `letters`."""
        logger.info("letters are counted", extra={"letters": len(response)})
        return {"letters": sum(response.encode()) % 7 / 6}


class BrokenReward(LettersReward):
    """Raises as long as a file exists."""

    def __init__(self, broken_while: str) -> None:
        self._broken_while = Path(broken_while)

    def __call__(self, *, response: str) -> dict[str, float]:
        if self._broken_while.exists():
            raise ZeroDivisionError("the grader is broken")
        return super().__call__(response=response)
