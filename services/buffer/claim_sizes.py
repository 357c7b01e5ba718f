"""Adaptive number of groups that are claimed together, by what fits into a turn."""

from collections.abc import Collection

from services.buffer.domain.operator import Chain
from trinity.types import StageKey

MAX_CLAIMS = 512
"""Most groups that are processed together; more would hold the stage's lock for long."""
MAX_READ_CLAIMS = 16
"""The same if an operator reads contents of samples, because all of them are in memory."""


class ClaimSizes:
    """Shrinks the size for a stage that could not try all groups, and doubles it otherwise.

    sizes.most(key, chain)  # 512
    sizes.learn(key, num_claimed=512, num_tried=3)
    sizes.most(key, chain)  # 3
    """

    def __init__(self) -> None:
        self._sizes: dict[StageKey, int] = {}

    def most(self, key: StageKey, chain: Chain) -> int:
        """Returns how many groups to claim next."""
        most = MAX_READ_CLAIMS if chain.needs.content else MAX_CLAIMS
        return min(most, self._sizes.get(key, most))

    def learn(self, key: StageKey, *, num_claimed: int, num_tried: int) -> None:
        """Adapts to the result of a claim; a small claim that was tried whole changes nothing."""
        if num_tried < num_claimed:
            self._sizes[key] = max(num_tried, 1)
        elif num_claimed >= self._sizes.get(key, MAX_CLAIMS):
            self._sizes[key] = min(2 * num_claimed, MAX_CLAIMS)

    def keep(self, keys: Collection[StageKey]) -> None:
        """Forgets all other stages."""
        self._sizes = {key: size for key, size in self._sizes.items() if key in keys}
