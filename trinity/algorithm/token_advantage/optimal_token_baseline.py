"""The baseline of least variance, one for each position of a group's rows."""

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups, masked
from trinity.algorithm.token_advantage.recurrence import discounted_sums
from trinity.algorithm.token_advantage.token_batch import (
    BoolMatrix,
    FloatMatrix,
    FloatVector,
    TokenAdvantages,
    TokenBatch,
)


def optimal_token_baseline(
    batch: TokenBatch, *, handle_zero_tail: bool = True, epsilon: float = 1e-8
) -> TokenAdvantages:
    """A_t = G_t - sum(G_t W_t) / (sum(W_t) + epsilon), sums over the group's rows at t.

    G_t is the reward from t on, W_t = w_1 + ... + w_t with w = 1 - 2 p + sum_v p_v^2, the squared
    length of the score function at the token taken, times the square of its correction weight. A
    single row has baseline 0; with handle_zero_tail so has the end of the single longest row of a
    group, beyond all other rows. For rollouts of one turn; `tir_optimal_token_baseline` does not
    count the positions of tool output. All matrices [B, T]. https://arxiv.org/abs/2602.07078
    """
    mask_BT = batch.mask_BT
    returns_BT = discounted_sums(batch.rewards_BT, mask_BT, 1.0)
    baselines_BT = optimal_baselines(
        returns_BT,
        path_variance(batch),
        mask_BT,
        Groups.from_ids(batch.groups_B),
        handle_zero_tail=handle_zero_tail,
        epsilon=epsilon,
    )
    advantages_BT = masked(returns_BT - baselines_BT, mask_BT)
    return TokenAdvantages(advantages_BT=advantages_BT, returns_BT=returns_BT)


def path_variance(batch: TokenBatch) -> FloatMatrix:
    """Returns W: the variance of the gradient of the row up to each position."""
    squared_score_BT = 1.0 - 2.0 * np.exp(masked(batch.logprobs_BT, batch.mask_BT))
    squared_score_BT = squared_score_BT + batch.needed("collision")
    if batch.rollout_is_weights_BT is not None:
        squared_score_BT = squared_score_BT * np.square(batch.rollout_is_weights_BT)
    sums_BT: FloatMatrix = np.cumsum(masked(squared_score_BT, batch.mask_BT), axis=1)
    return sums_BT


def optimal_baselines(
    returns_BT: FloatMatrix,
    variance_BT: FloatMatrix,
    mask_BT: BoolMatrix,
    groups: Groups,
    *,
    handle_zero_tail: bool,
    epsilon: float,
) -> FloatMatrix:
    """Returns the group's baseline at each position, for each row."""
    weights_BT = masked(variance_BT, mask_BT)
    weighted_GT = groups.sums_GT(returns_BT * weights_BT)
    baselines_GT = weighted_GT / (groups.sums_GT(weights_BT) + epsilon)
    alone_B = groups.sizes_B == 1
    end_B = np.where(alone_B, 0, mask_BT.shape[1])
    if handle_zero_tail:
        end_B = np.minimum(end_B, _shared_lengths(mask_BT.sum(-1), groups))
    covered_BT = np.arange(mask_BT.shape[1]) < end_B[:, None]
    return masked(baselines_GT[groups.index_B], covered_BT)


def _shared_lengths(lengths_B: FloatVector, groups: Groups) -> FloatVector:
    """Returns the second greatest length for a group's single longest row; otherwise infinity."""
    lengths_B = lengths_B.astype(np.float64)
    longest_B = lengths_B == groups.maxima_B(lengths_B)
    only_B = longest_B & (groups.sums_B(longest_B.astype(np.float64)) == 1)
    others_B = groups.maxima_B(np.where(only_B, -np.inf, lengths_B))
    return np.where(only_B, others_B, np.inf)
