"""Statistics over the tokens in a mask; values outside it are ignored."""

import numpy as np

from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix, FloatVector

ALMOST_NOTHING = 1e-8
"""Added to counts and variances, as in verl, to avoid division by 0."""


def kept(values_BT: FloatMatrix | BoolMatrix, mask_BT: BoolMatrix) -> FloatMatrix:
    """Returns the values, 0 where the mask is false."""
    return np.where(mask_BT, values_BT, 0.0)


def spread(values_B: FloatVector, mask_BT: BoolMatrix) -> FloatMatrix:
    """Repeats each row's value at all its tokens, 0 where the mask is false."""
    return np.where(mask_BT, values_B[:, None], 0.0)


def masked_mean(values_BT: FloatMatrix | BoolMatrix, mask_BT: BoolMatrix) -> float:
    """Returns the mean over all tokens; for booleans, the share of true ones; 0 for no tokens."""
    return float(kept(values_BT, mask_BT).sum() / (mask_BT.sum() + ALMOST_NOTHING))


def row_means(values_BT: FloatMatrix, mask_BT: BoolMatrix) -> FloatVector:
    """Returns the mean over each row's tokens; 0 for no tokens."""
    means_B: FloatVector = kept(values_BT, mask_BT).sum(-1) / (mask_BT.sum(-1) + ALMOST_NOTHING)
    return means_B


def whitened(values_BT: FloatMatrix, mask_BT: BoolMatrix) -> FloatMatrix:
    """(x - mean) / sqrt(variance + 1e-8) over the mask, variance unbiased; 0 elsewhere."""
    num_tokens = int(mask_BT.sum())
    centered_BT = kept(values_BT - masked_mean(values_BT, mask_BT), mask_BT)
    if num_tokens < 2:
        return np.zeros_like(centered_BT)
    variance = masked_mean(np.square(centered_BT), mask_BT) * num_tokens / (num_tokens - 1)
    whitened_BT: FloatMatrix = centered_BT / np.sqrt(variance + ALMOST_NOTHING)
    return whitened_BT
