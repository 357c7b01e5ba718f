"""VAPO's GAE: one lambda for the critic, and one for the policy that grows with the answer."""

import numpy as np

from trinity.algorithm.token_advantage.masked import masked, whitened
from trinity.algorithm.token_advantage.recurrence import (
    check_discount,
    discounted_sums,
    next_values,
)
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.errors import UserError


def vapo(
    batch: TokenBatch,
    *,
    gamma: float = 1.0,
    lam: float | None = None,
    alpha: float = 0.05,
    least_lam: float = 0.95,
    critic_lam: float = 1.0,
) -> TokenAdvantages:
    """A_t = d_t + gamma lam A_n with d_t = r_t + gamma V_n - V_t, whitened over the mask.

    Without `lam` each row has its own, max(least_lam, 1 - 1 / (alpha l)) for its l trained tokens,
    so that a reward at the end reaches the beginning of a long answer. The paper has no lower
    bound: its lambda is 0 for answers of 20 tokens, so the policy follows the critic's guesses.
    Returns are V plus the same sum with critic_lam; at 1 the critic's target is the sum of future
    rewards, without bootstrapping. n is the next token that is trained on. All matrices [B, T].
    https://arxiv.org/abs/2504.05118; two lambdas: https://arxiv.org/abs/2503.01491
    """
    check_discount("gamma", gamma)
    check_discount("critic_lam", critic_lam)
    check_discount("least_lam", least_lam)
    if lam is not None:
        check_discount("lam", lam)
    if alpha <= 0:
        raise UserError(f"algorithm.advantage_fn_args.alpha is {alpha}; give more than 0")
    mask_BT = batch.mask_BT
    values_BT = masked(batch.needed("values"), mask_BT)
    deltas_BT = batch.rewards_BT + gamma * next_values(values_BT, mask_BT) - values_BT
    lengths_B1 = np.maximum(mask_BT.sum(-1, keepdims=True), 1)
    lam_B1 = np.maximum(1.0 - 1.0 / (alpha * lengths_B1), least_lam)
    lam_B1 = lam_B1 if lam is None else np.full_like(lam_B1, lam)
    advantages_BT = discounted_sums(deltas_BT, mask_BT, gamma * lam_B1)
    returns_BT = discounted_sums(deltas_BT, mask_BT, gamma * critic_lam) + values_BT
    mean_lam = float(lam_B1.mean()) if len(lam_B1) else 0.0
    return TokenAdvantages(
        advantages_BT=whitened(advantages_BT, mask_BT),
        returns_BT=returns_BT,
        metrics={"vapo/lam": mean_lam},
    )
