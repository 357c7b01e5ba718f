"""An experience operator of one's own, in one file: of two right answers the shorter is better."""

import numpy as np

from trinity.operators import OPERATORS
from trinity.operators.rollouts import Changes, Rollouts


@OPERATORS.register_module("terse")
def terse(rollouts: Rollouts, *, right: float = 1.0, price: float = 0.05) -> Changes:
    """A right answer (r >= right) loses `price` for each token beyond its task's shortest one.

    The advantage function sees these rewards; what was stored keeps the reward as it came.
    """
    is_right_N = rollouts.rewards >= right
    lengths_N = rollouts.response_lengths.astype(np.float64)
    shortest_G = -rollouts.group_maxima(np.where(is_right_N, -lengths_N, -np.inf))
    extra_N = np.where(is_right_N, lengths_N - shortest_G[rollouts.groups], 0.0)
    return Changes(
        rewards=rollouts.rewards - price * extra_N,
        metrics={"extra_token_count": rollouts.group_sums(extra_N)},
    )
