"""AsymRE in the trainer: scores less their group's mean, which is shifted."""

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch


def asymre_verl(batch: TokenBatch, *, baseline_shift: float = -0.1) -> TokenAdvantages:
    """A = s - (mean of the group + baseline_shift) at every token; a single row: s.

    s [B] is the sum of a row's rewards. A negative shift weights success above failure, which makes
    learning from old rollouts safer. https://arxiv.org/abs/2506.20520
    """
    scores_B, groups = batch.scores_B, Groups.from_ids(batch.groups_B)
    shift_B = np.where(groups.sizes_B > 1, baseline_shift, 0.0)
    scores_B = scores_B - (groups.baselines_B(scores_B) + shift_B)
    return TokenAdvantages(advantages_BT=broadcast_rows(scores_B, batch.mask_BT))
