"""REINFORCE++ with returns over every response token, trained on or not."""

import numpy as np

from trinity.algorithm.token_advantage.masked import masked, whitened
from trinity.algorithm.token_advantage.recurrence import check_discount, discounted_sums
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch


def reinforceplusplus_unmasked(batch: TokenBatch, *, gamma: float = 1.0) -> TokenAdvantages:
    """R_t = r_t + gamma R_(t+1); A is R whitened over the mask.

    Trinity-RFT's recursion: tokens of tools and users discount, and rewards at them count. With
    gamma 1 and no reward at such tokens it is the same as `reinforceplusplus`. All matrices
    [B, T]. https://arxiv.org/abs/2501.03262
    """
    check_discount("gamma", gamma)
    everywhere_BT = np.ones_like(batch.mask_BT)
    returns_BT = masked(discounted_sums(batch.rewards_BT, everywhere_BT, gamma), batch.mask_BT)
    return TokenAdvantages(advantages_BT=whitened(returns_BT, batch.mask_BT), returns_BT=returns_BT)
