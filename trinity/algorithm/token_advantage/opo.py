"""OPO: scores less their group's mean, which is weighted by length."""

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch


def opo(batch: TokenBatch) -> TokenAdvantages:
    """A = s - sum(l s) / sum(l) over the group, at every token; a single row: s.

    s [B] is the sum of a row's rewards, l [B] the number of its tokens that are trained on: the
    baseline of least variance where a gradient grows with its length.
    https://arxiv.org/abs/2505.23585
    """
    scores_B, groups = batch.scores_B, Groups.from_ids(batch.groups_B)
    lengths_B = batch.mask_BT.sum(-1).astype(np.float64)
    totals_B = np.maximum(groups.sums_B(lengths_B), 1.0)
    baselines_B = np.where(groups.sizes_B > 1, groups.sums_B(lengths_B * scores_B) / totals_B, 0.0)
    return TokenAdvantages(advantages_BT=broadcast_rows(scores_B - baselines_B, batch.mask_BT))
