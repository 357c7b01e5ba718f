"""KTO's reference point: how far the policy is from the reference model on other answers."""

import numpy as np

from trinity.algorithm.token_advantage.token_batch import FloatMatrix
from trinity.algorithm.token_selection.selection_batch import SelectionBatch


def select_kto(batch: SelectionBatch) -> FloatMatrix:
    """z = max(0, the mean of sum(log p - log p_reference)) at all tokens; [B, T].

    The mean is over every second row, which has the prompt of the row before it and the answer of
    another one. https://arxiv.org/abs/2402.01306, section 4.1
    """
    assert batch.reference_logprobs_BT is not None, "kto compares with a reference"
    mask_BT = batch.mask_BT[1::2]
    gaps_BT = (batch.logprobs_BT - batch.reference_logprobs_BT)[1::2]
    sums_B = np.where(mask_BT, gaps_BT, 0.0).sum(-1)[mask_BT.any(-1)]
    shift = max(float(sums_B.mean()), 0.0) if len(sums_B) else 0.0
    return np.where(batch.mask_BT, shift, 0.0)
