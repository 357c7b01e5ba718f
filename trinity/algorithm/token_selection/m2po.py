"""M2PO's trust region: as wide as the second moment of the log-ratios allows."""

import numpy as np

from trinity.algorithm.token_advantage.token_batch import FloatMatrix
from trinity.algorithm.token_selection.selection_batch import SelectionBatch

UNBOUNDED = 20.0
"""No log-ratio is larger, as the loss clamps them."""


def select_m2po(batch: SelectionBatch, *, m2_threshold: float = 0.04) -> FloatMatrix:
    """The largest |log r| whose tokens are still trained, one number at all tokens; [B, T].

    It is the largest one among the tokens that clipping is about, A > 0 with r > 1 and A < 0 with
    r < 1, that keeps the mean of their (log r)^2, the larger ones cut to it, within the threshold.
    https://arxiv.org/abs/2510.01161
    """
    log_ratios_BT = batch.logprobs_BT - batch.old_logprobs_BT
    goes_on_BT = batch.mask_BT & (log_ratios_BT * batch.advantages_BT > 0)
    squares_N = np.sort(np.square(log_ratios_BT[goes_on_BT]))
    return np.where(batch.mask_BT, _largest_kept(squares_N, m2_threshold), 0.0)


def _largest_kept(squares_N: FloatMatrix, threshold: float) -> float:
    if not len(squares_N) or squares_N.mean() <= threshold:
        return UNBOUNDED
    num_larger_N = np.arange(len(squares_N))[::-1]
    cut_means_N = (np.cumsum(squares_N) + squares_N * num_larger_N) / len(squares_N)
    kept_N = squares_N[cut_means_N <= threshold]
    return float(np.sqrt(kept_N[-1])) if len(kept_N) else 0.0
