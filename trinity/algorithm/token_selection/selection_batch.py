"""The input type of token selections: all rows of an update."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix, FloatVector


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionBatch:
    """B rows of T response tokens; other arrays may hold anything where the mask is false."""

    logprobs_BT: FloatMatrix
    """By the policy that the update begins with."""
    old_logprobs_BT: FloatMatrix
    """By the policy in the denominator of ratios."""
    advantages_BT: FloatMatrix
    mask_BT: BoolMatrix
    lots_BT: FloatMatrix
    """Uniform in [0, 1) for each token, so that randomness does not depend on the order of rows."""
    reference_logprobs_BT: FloatMatrix | None = None
    """By the stage's starting weights; None where the algorithm has no reference."""

    def covariances(self) -> FloatVector:
        """(A - mean A) (log p - mean log p) of the N tokens of the mask; means are over them."""
        advantages_N, logprobs_N = self.advantages_BT[self.mask_BT], self.logprobs_BT[self.mask_BT]
        if not len(advantages_N):
            return advantages_N
        covariances_N: FloatVector = (advantages_N - advantages_N.mean()) * (
            logprobs_N - logprobs_N.mean()
        )
        return covariances_N

    def scatter(self, chosen_N: BoolMatrix) -> BoolMatrix:
        """Maps a selection among the mask's tokens back to the matrix."""
        chosen_BT = np.zeros_like(self.mask_BT)
        chosen_BT[self.mask_BT] = chosen_N
        return chosen_BT


TokenSelectionFn = Callable[..., BoolMatrix | FloatMatrix]
"""Takes `SelectionBatch`, then by keyword those of `policy_loss_fn_args` that it names."""


def num_selected(share: float, num_tokens: int) -> int:
    """Returns that share of the tokens, at least one."""
    return max(int(share * num_tokens), 1)
