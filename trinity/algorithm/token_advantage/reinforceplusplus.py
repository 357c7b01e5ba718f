"""REINFORCE++: discounted returns, normalized over the whole batch."""

from trinity.algorithm.token_advantage.masked import whitened
from trinity.algorithm.token_advantage.recurrence import check_discount, discounted_sums
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch


def reinforceplusplus(batch: TokenBatch, *, gamma: float = 1.0) -> TokenAdvantages:
    """R_t = r_t + gamma R_n, n the next token that is trained on; A is R whitened over the mask.

    All matrices [B, T]. https://arxiv.org/abs/2501.03262
    """
    check_discount("gamma", gamma)
    returns_BT = discounted_sums(batch.rewards_BT, batch.mask_BT, gamma)
    return TokenAdvantages(advantages_BT=whitened(returns_BT, batch.mask_BT), returns_BT=returns_BT)
