"""Metrics of the divergence between the proximal policy and the rollout policy."""

import numpy as np

from trinity.algorithm.rollout_correction.statistics import bounded, bounded_exp
from trinity.algorithm.token_advantage.masked import kept, masked_mean, row_means
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix


def divergence_metrics(
    proximal_BT: FloatMatrix, rollout_BT: FloatMatrix, mask_BT: BoolMatrix
) -> dict[str, float]:
    """Returns divergences over tokens and perplexities over rows; the mask must not be empty."""
    proximal_BT, rollout_BT = kept(proximal_BT, mask_BT), kept(rollout_BT, mask_BT)
    log_ratio_BT = proximal_BT - rollout_BT
    rows_B = mask_BT.any(-1)
    log_ratio_R = bounded(log_ratio_BT.sum(-1)[rows_B])
    return {
        "kl": masked_mean(-log_ratio_BT, mask_BT),
        "k3_kl": masked_mean(bounded_exp(log_ratio_BT) - log_ratio_BT - 1.0, mask_BT),
        "chi2_token": masked_mean(np.exp(2.0 * bounded(log_ratio_BT)), mask_BT) - 1.0,
        "chi2_seq": float(np.exp(2.0 * log_ratio_R).mean()) - 1.0,
        **_perplexities(proximal_BT, rollout_BT, mask_BT),
    }


def _perplexities(
    proximal_BT: FloatMatrix, rollout_BT: FloatMatrix, mask_BT: BoolMatrix
) -> dict[str, float]:
    rows_B = mask_BT.any(-1)
    training_R = -row_means(proximal_BT, mask_BT)[rows_B]
    rollout_R = -row_means(rollout_BT, mask_BT)[rows_B]
    difference_R = training_R - rollout_R
    return {
        "training_ppl": float(bounded_exp(training_R).mean()),
        "training_log_ppl": float(training_R.mean()),
        "rollout_ppl": float(bounded_exp(rollout_R).mean()),
        "rollout_log_ppl": float(rollout_R.mean()),
        "log_ppl_diff": float(difference_R.mean()),
        "log_ppl_abs_diff": float(np.abs(difference_R).mean()),
        "log_ppl_diff_max": float(difference_R.max()),
        "log_ppl_diff_min": float(difference_R.min()),
        "ppl_ratio": float(bounded_exp(difference_R).mean()),
    }
