"""M2PO's selection: the outliers that keep the second moment of the log-ratios too large."""

import numpy as np

from trinity.algorithm.token_advantage.token_batch import BoolMatrix
from trinity.algorithm.token_selection.selection_batch import SelectionBatch


def select_m2po(batch: SelectionBatch, *, m2_threshold: float = 0.04) -> BoolMatrix:
    """The fewest tokens of largest (log r)^2 without which its mean is below the threshold; [B, T].

    Ties go to the smaller lots. If even the smallest is not below it, all but that one are.
    https://arxiv.org/abs/2510.01161
    """
    log_ratios_N = (batch.logprobs_BT - batch.old_logprobs_BT)[batch.mask_BT]
    squares_N = np.square(log_ratios_N)
    order = np.lexsort((batch.lots_BT[batch.mask_BT], -squares_N))
    rest_N = np.cumsum(squares_N[order][::-1])[::-1] / np.arange(len(order), 0, -1)
    is_below_N = rest_N < m2_threshold
    num_chosen = int(is_below_N.argmax()) if is_below_N.any() else max(len(order) - 1, 0)
    chosen_N = np.zeros(len(order), np.bool_)
    chosen_N[order[:num_chosen]] = True
    return batch.scatter(chosen_N)
