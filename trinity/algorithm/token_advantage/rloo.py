"""RLOO: compares each rollout with the mean of the others of its task."""

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows
from trinity.algorithm.token_advantage.token_batch import FloatVector, TokenAdvantages, TokenBatch
from trinity.algorithm.token_advantage.units import compare_scores
from trinity.algorithm.units import Unit


def rloo(batch: TokenBatch, *, unit: Unit = "run") -> TokenAdvantages:
    """A = n / (n - 1) (s - mean of the group), at every token; a single unit: s.

    s [B] is the sum of a row's rewards, n its group's size; A is s less the mean of the other
    n - 1.

    unit "run": each run counts once in its group, with the mean of its rows' s, and all its rows
        get its A; "sample": every row counts.

    https://arxiv.org/abs/2402.14740
    """
    scores_B = compare_scores(batch, unit, _less_others)
    return TokenAdvantages(advantages_BT=broadcast_rows(scores_B, batch.mask_BT))


def _less_others(scores_U: FloatVector, groups: Groups) -> FloatVector:
    sizes_U = groups.sizes_B
    scale_U = np.where(sizes_U > 1, sizes_U / np.maximum(sizes_U - 1, 1), 1.0)
    compared_U: FloatVector = scale_U * (scores_U - groups.baselines_B(scores_U))
    return compared_U
