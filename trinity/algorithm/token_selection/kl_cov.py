"""KL-Cov's selection: the tokens whose update would reduce entropy the most."""

import numpy as np

from trinity.algorithm.token_advantage.token_batch import BoolMatrix
from trinity.algorithm.token_selection.selection_batch import SelectionBatch, num_selected


def select_kl_cov(batch: SelectionBatch, *, kl_cov_ratio: float = 0.0002) -> BoolMatrix:
    """kl_cov_ratio of all tokens, at least one: those with the largest covariances; [B, T].

    Ties go to the smaller lots. https://arxiv.org/abs/2505.22617
    """
    covariances_N = batch.covariances()
    order = np.lexsort((batch.lots_BT[batch.mask_BT], -covariances_N))
    chosen_N = np.zeros(len(covariances_N), np.bool_)
    chosen_N[order[: num_selected(kl_cov_ratio, len(covariances_N))]] = True
    return batch.scatter(chosen_N)
