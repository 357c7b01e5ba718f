"""The optimal token baseline for rollouts with tool calls: positions count the policy's tokens."""

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups, masked
from trinity.algorithm.token_advantage.optimal_token_baseline import (
    optimal_baselines,
    path_variance,
)
from trinity.algorithm.token_advantage.recurrence import discounted_sums
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch


def tir_optimal_token_baseline(
    batch: TokenBatch, *, handle_zero_tail: bool = True, epsilon: float = 1e-8
) -> TokenAdvantages:
    """A_t of `optimal_token_baseline`, with t counting only tokens that are trained on.

    Rows without such tokens belong to no group. All matrices [B, T].
    https://arxiv.org/abs/2602.07078
    """
    mask_BT = batch.mask_BT
    order_BT = np.argsort(~mask_BT, axis=1, kind="stable")
    packed_mask_BT = np.take_along_axis(mask_BT, order_BT, axis=1)
    returns_BT = discounted_sums(batch.rewards_BT, mask_BT, 1.0)
    empty_B = ~mask_BT.any(-1)
    packed_BT = optimal_baselines(
        np.take_along_axis(returns_BT, order_BT, axis=1),
        np.take_along_axis(path_variance(batch), order_BT, axis=1),
        packed_mask_BT,
        Groups.from_ids(np.where(empty_B, batch.groups_B.max(initial=0) + 1, batch.groups_B)),
        handle_zero_tail=handle_zero_tail,
        epsilon=epsilon,
    )
    baselines_BT = np.empty_like(packed_BT)
    np.put_along_axis(baselines_BT, order_BT, packed_BT, axis=1)
    advantages_BT = masked(returns_BT - baselines_BT, mask_BT)
    return TokenAdvantages(advantages_BT=advantages_BT, returns_BT=returns_BT)
