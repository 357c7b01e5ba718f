"""How many groups of a stage are claimed together: what its functions have time for in a turn."""

from collections.abc import Collection

from services.buffer.domain.operator import Chain
from trinity.types import StageKey

MAX_CLAIMS = 512
"""Groups that are shaped together; more would hold the stage's lock for long."""
MAX_READ_CLAIMS = 16
"""The same where an operator reads what samples say, all of which is in memory then."""


class ClaimSizes:
    """Fewer for a stage that could not try all, twice as many for one that could.

    sizes.most(key, chain)  # 512
    sizes.learn(key, num_claimed=512, num_tried=3)
    sizes.most(key, chain)  # 3
    """

    def __init__(self) -> None:
        self._sizes: dict[StageKey, int] = {}

    def most(self, key: StageKey, chain: Chain) -> int:
        """How many to claim next."""
        most = MAX_READ_CLAIMS if chain.needs.content else MAX_CLAIMS
        return min(most, self._sizes.get(key, most))

    def learn(self, key: StageKey, *, num_claimed: int, num_tried: int) -> None:
        """Remember what became of a claim; a claim of few groups says nothing of many."""
        if num_tried < num_claimed:
            self._sizes[key] = max(num_tried, 1)
        elif num_claimed >= self._sizes.get(key, MAX_CLAIMS):
            self._sizes[key] = min(2 * num_claimed, MAX_CLAIMS)

    def keep(self, keys: Collection[StageKey]) -> None:
        """Forget all other stages."""
        self._sizes = {key: size for key, size in self._sizes.items() if key in keys}
