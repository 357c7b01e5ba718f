"""OPO: scores less their group's mean, which is weighted by length."""

import numpy as np

from trinity.algorithm.token_advantage.masked import broadcast_rows
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.algorithm.token_advantage.units import Units
from trinity.algorithm.units import Unit


def opo(batch: TokenBatch, *, unit: Unit = "run") -> TokenAdvantages:
    """A = s - sum(l s) / sum(l) over the group, at every token; a single unit: s.

    s [B] is the sum of a row's rewards, l [B] the number of its tokens that are trained on: the
    baseline of least variance where a gradient grows with its length.

    unit "run": each run counts once in its group, with the mean of its rows' s and the sum of their
        l, and all its rows get its A; "sample": every row counts.

    https://arxiv.org/abs/2505.23585
    """
    units = Units.of_batch(batch, unit)
    scores_U, groups = units.means_U(batch.scores_B), units.groups
    lengths_U = units.sums_U(batch.mask_BT.sum(-1))
    totals_U = np.maximum(groups.sums_B(lengths_U), 1.0)
    baselines_U = np.where(groups.sizes_B > 1, groups.sums_B(lengths_U * scores_U) / totals_U, 0.0)
    scores_B = units.spread_B(scores_U - baselines_U)
    return TokenAdvantages(advantages_BT=broadcast_rows(scores_B, batch.mask_BT))
