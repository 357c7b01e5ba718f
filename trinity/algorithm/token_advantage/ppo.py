"""Generalized advantage estimation, over the tokens that are trained on."""

from trinity.algorithm.token_advantage.masked import masked, whitened
from trinity.algorithm.token_advantage.recurrence import (
    check_discount,
    discounted_sums,
    next_values,
)
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch


def ppo(batch: TokenBatch, *, gamma: float = 1.0, lam: float = 1.0) -> TokenAdvantages:
    """A_t = d_t + gamma lam A_n with d_t = r_t + gamma V_n - V_t, whitened over the mask.

    n is the next token that is trained on: tokens of tools and users in between are skipped, as in
    verl. Returns are A + V before whitening. All matrices [B, T]. https://arxiv.org/abs/1506.02438
    """
    check_discount("gamma", gamma)
    check_discount("lam", lam)
    mask_BT = batch.mask_BT
    values_BT = masked(batch.needed("values"), mask_BT)
    deltas_BT = batch.rewards_BT + gamma * next_values(values_BT, mask_BT) - values_BT
    advantages_BT = discounted_sums(deltas_BT, mask_BT, gamma * lam)
    return TokenAdvantages(
        advantages_BT=whitened(advantages_BT, mask_BT), returns_BT=advantages_BT + values_BT
    )
