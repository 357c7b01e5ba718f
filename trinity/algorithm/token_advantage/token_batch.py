"""What a token advantage gets and gives: the whole batch of a train step, on every rank alike.

def discounted(batch: TokenBatch, *, gamma: float = 1.0) -> TokenAdvantages:
    returns_BT = discounted_sums(batch.rewards_BT, gamma)
    return TokenAdvantages(advantages_BT=returns_BT * batch.mask_BT, returns_BT=returns_BT)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatMatrix = npt.NDArray[np.float64]
BoolMatrix = npt.NDArray[np.bool_]
IntVector = npt.NDArray[np.int64]

Need = Literal["values", "entropies", "collision", "teacher", "baselines"]
"""What a token advantage may ask for beyond what every batch has.

values: the critic's; entropies: of the policy's distribution at each token; collision: the sum of
the squared probabilities there; teacher: log-probabilities that the rollout brought with it;
baselines: the reward of a greedy rollout of the same task.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """B rows of T response tokens, padded on the right; what is not asked for is None."""

    rewards_BT: FloatMatrix
    """Reward token by token, with the divergence's penalty already taken off."""
    mask_BT: BoolMatrix
    """True where the policy chose the token and it is trained on."""
    lengths_B: IntVector
    """Response tokens of each row, trained on or not."""
    groups_B: IntVector
    """Equal numbers are runs of one task in one explore step."""
    logprobs_BT: FloatMatrix
    """Of the policy before this step, at the tokens taken."""
    rollout_logprobs_BT: FloatMatrix
    """Of the policy that made the tokens, as its engine gave them."""
    values_BT: FloatMatrix | None = None
    entropies_BT: FloatMatrix | None = None
    collision_BT: FloatMatrix | None = None
    teacher_logprobs_BT: FloatMatrix | None = None
    baselines_B: npt.NDArray[np.float64] | None = None

    @property
    def scores_B(self) -> npt.NDArray[np.float64]:
        """Sum of each row's rewards."""
        scores: npt.NDArray[np.float64] = self.rewards_BT.sum(-1)
        return scores


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAdvantages:
    """Advantages, and what a critic should have said."""

    advantages_BT: FloatMatrix
    """0 where the mask is false."""
    returns_BT: FloatMatrix | None = None
    """Targets of the critic; None where there is none."""
    mask_BT: BoolMatrix | None = None
    """A narrower mask, where tokens are to be left out of the loss."""
    metrics: Mapping[str, float] = field(default_factory=dict)


TokenAdvantageFn = Callable[..., TokenAdvantages]
"""Takes `TokenBatch`, then `advantage_fn_args` by keyword."""
