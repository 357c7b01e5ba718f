"""GPG: scores less their group's mean, scaled up where few rows of the batch have any score."""

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows
from trinity.algorithm.token_advantage.token_batch import FloatVector, TokenAdvantages, TokenBatch
from trinity.algorithm.token_advantage.units import compare_scores
from trinity.algorithm.units import Unit
from trinity.errors import UserError


def gpg(batch: TokenBatch, *, f_norm: float = 1.0, unit: Unit = "run") -> TokenAdvantages:
    """A = U / m (s - mean of the group) / f_norm at every token; a single unit: mean 0.

    s is the sum of a row's rewards, U the number of runs or rows, m that of those whose s is not 0.

    unit "run": each run counts once in its group, with the mean of its rows' s, and all its rows
        get its A; "sample": every row counts.

    https://arxiv.org/abs/2504.02546
    """
    if f_norm <= 0:
        raise UserError(f"algorithm.advantage_fn_args.f_norm is {f_norm}; give one above 0")
    scores_B = compare_scores(batch, unit, _scaled) / f_norm
    return TokenAdvantages(advantages_BT=broadcast_rows(scores_B, batch.mask_BT))


def _scaled(scores_U: FloatVector, groups: Groups) -> FloatVector:
    alpha = len(scores_U) / max(int(np.count_nonzero(scores_U)), 1)
    return alpha * (scores_U - groups.baselines_B(scores_U))
