"""RLOO: compares each rollout with the mean of the others of its task."""

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch


def rloo(batch: TokenBatch) -> TokenAdvantages:
    """A = n / (n - 1) (s - mean of the group), at every token; a single row: s.

    s [B] is the sum of a row's rewards, n its group's size; A is s less the mean of the other
    n - 1. https://arxiv.org/abs/2402.14740
    """
    scores_B, groups = batch.scores_B, Groups.from_ids(batch.groups_B)
    sizes_B = groups.sizes_B
    scale_B = np.where(sizes_B > 1, sizes_B / np.maximum(sizes_B - 1, 1), 1.0)
    scores_B = scale_B * (scores_B - groups.baselines_B(scores_B))
    return TokenAdvantages(advantages_BT=broadcast_rows(scores_B, batch.mask_BT))
