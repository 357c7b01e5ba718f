"""OPMD in the trainer: scores less the mean or the soft maximum of their group."""

from functools import partial
from typing import Literal

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows
from trinity.algorithm.token_advantage.token_batch import FloatVector, TokenAdvantages, TokenBatch
from trinity.algorithm.token_advantage.units import compare_scores
from trinity.algorithm.units import Unit
from trinity.errors import UserError


def opmd_verl(
    batch: TokenBatch,
    *,
    opmd_baseline: Literal["mean", "logavgexp"] = "mean",
    tau: float = 1.0,
    unit: Unit = "run",
) -> TokenAdvantages:
    """A = s - b at every token, b the group's mean or tau log mean exp(s / tau); a single unit: s.

    s [B] is the sum of a row's rewards.

    unit "run": each run counts once in its group, with the mean of its rows' s, and all its rows
        get its A; "sample": every row counts.

    https://arxiv.org/abs/2505.17826
    """
    if tau <= 0:
        raise UserError(f"algorithm.advantage_fn_args.tau is {tau}; give one above 0")
    compare = partial(_less_baseline, opmd_baseline=opmd_baseline, tau=tau)
    scores_B = compare_scores(batch, unit, compare)
    return TokenAdvantages(advantages_BT=broadcast_rows(scores_B, batch.mask_BT))


def _less_baseline(
    scores_U: FloatVector, groups: Groups, *, opmd_baseline: str, tau: float
) -> FloatVector:
    if opmd_baseline == "mean":
        return scores_U - groups.baselines_B(scores_U)
    soft_maxima_U = np.where(groups.sizes_B > 1, _log_mean_exp(scores_U, groups, tau), 0.0)
    compared_U: FloatVector = scores_U - soft_maxima_U
    return compared_U


def _log_mean_exp(scores_B: FloatVector, groups: Groups, tau: float) -> FloatVector:
    """Computes relative to the group's largest score to avoid overflow."""
    largest_B = groups.maxima_B(scores_B)
    means_B = groups.means_B(np.exp((scores_B - largest_B) / tau))
    soft_maxima_B: FloatVector = largest_B + tau * np.log(means_B)
    return soft_maxima_B
