"""Generalized advantage estimation over every response token, trained on or not."""

import numpy as np

from trinity.algorithm.token_advantage.masked import masked, whitened
from trinity.algorithm.token_advantage.recurrence import (
    check_discount,
    discounted_sums,
    next_values,
)
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch


def ppo_unmasked(batch: TokenBatch, *, gamma: float = 1.0, lam: float = 1.0) -> TokenAdvantages:
    """A_t = d_t + gamma lam A_(t+1) with d_t = r_t + gamma V_(t+1) - V_t, whitened over the mask.

    Trinity-RFT's recursion: the critic's values at tokens of tools and users enter too. Without
    such tokens it is the same as `ppo`. All matrices [B, T]. https://arxiv.org/abs/1506.02438
    """
    check_discount("gamma", gamma)
    check_discount("lam", lam)
    inside_BT = np.arange(batch.mask_BT.shape[1]) < batch.lengths_B[:, None]
    values_BT = masked(batch.needed("values"), inside_BT)
    deltas_BT = batch.rewards_BT + gamma * next_values(values_BT, inside_BT) - values_BT
    advantages_BT = discounted_sums(deltas_BT, inside_BT, gamma * lam)
    return TokenAdvantages(
        advantages_BT=whitened(advantages_BT, batch.mask_BT),
        returns_BT=masked(advantages_BT + values_BT, batch.mask_BT),
    )
