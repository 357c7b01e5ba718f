"""OPMD in the trainer: scores less the mean or the soft maximum of their group."""

from typing import Literal

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows
from trinity.algorithm.token_advantage.token_batch import FloatVector, TokenAdvantages, TokenBatch
from trinity.errors import UserError


def opmd_verl(
    batch: TokenBatch, *, opmd_baseline: Literal["mean", "logavgexp"] = "mean", tau: float = 1.0
) -> TokenAdvantages:
    """A = s - b at every token, b the group's mean or tau log mean exp(s / tau); a single row: s.

    s [B] is the sum of a row's rewards. https://arxiv.org/abs/2505.17826
    """
    if tau <= 0:
        raise UserError(f"algorithm.advantage_fn_args.tau is {tau}; give one above 0")
    scores_B, groups = batch.scores_B, Groups.from_ids(batch.groups_B)
    if opmd_baseline == "mean":
        baselines_B = groups.baselines_B(scores_B)
    else:
        baselines_B = np.where(groups.sizes_B > 1, _log_mean_exp(scores_B, groups, tau), 0.0)
    return TokenAdvantages(advantages_BT=broadcast_rows(scores_B - baselines_B, batch.mask_BT))


def _log_mean_exp(scores_B: FloatVector, groups: Groups, tau: float) -> FloatVector:
    """Computes relative to the group's largest score, so that nothing overflows."""
    largest_B = groups.maxima_B(scores_B)
    means_B = groups.means_B(np.exp((scores_B - largest_B) / tau))
    soft_maxima_B: FloatVector = largest_B + tau * np.log(means_B)
    return soft_maxima_B
