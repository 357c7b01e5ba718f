"""Sums that run backwards along the tokens, in log2(T) passes over the matrix instead of T.

After pass k every position holds the sum over the 2^k positions that begin there, and the factor
with which the sum 2^k positions further on enters. Factors are at most 1, so sums do not overflow;
a row's result depends neither on the other rows nor on the length of its padding.
"""

import numpy as np

from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix
from trinity.errors import UserError


def reverse_scan(terms_BT: FloatMatrix, factors_BT: FloatMatrix) -> FloatMatrix:
    """y with y[t] = terms[t] + factors[t] * y[t + 1], where y[T] = 0."""
    sums_BT, factors_BT = terms_BT.copy(), factors_BT.copy()
    width = 1
    while width < sums_BT.shape[1]:
        sums_BT[:, :-width] += factors_BT[:, :-width] * sums_BT[:, width:]
        factors_BT[:, :-width] *= factors_BT[:, width:]
        width *= 2
    return sums_BT


def discounted_sums(
    terms_BT: FloatMatrix, mask_BT: BoolMatrix, discount: float | FloatMatrix
) -> FloatMatrix:
    """Returns the discounted sum from each token on, over tokens in the mask; 0 elsewhere.

    The discount is one for all, or one for each row, [B, 1].
    A gap in the mask is skipped: it neither adds to the sum nor discounts it.
    """
    terms_BT = np.where(mask_BT, terms_BT, 0.0)
    sums_BT = reverse_scan(terms_BT, np.where(mask_BT, discount, 1.0))
    return np.where(mask_BT, sums_BT, 0.0)


def next_values(values_BT: FloatMatrix, mask_BT: BoolMatrix) -> FloatMatrix:
    """Returns, for each position, the value of the next position in the mask; 0 for the last."""
    num_rows, num_tokens = mask_BT.shape
    places_BT = np.where(mask_BT, np.arange(num_tokens), num_tokens)
    nearest_BT = np.minimum.accumulate(places_BT[:, ::-1], axis=1)[:, ::-1]
    next_BT = np.full_like(nearest_BT, num_tokens)
    next_BT[:, :-1] = nearest_BT[:, 1:]
    padded = np.concatenate([np.where(mask_BT, values_BT, 0.0), np.zeros((num_rows, 1))], axis=1)
    return np.take_along_axis(padded, next_BT, axis=1)


def check_discount(name: str, value: float) -> None:
    """Raises: UserError unless the discount is between 0 and 1."""
    if not 0.0 <= value <= 1.0:
        raise UserError(f"algorithm.advantage_fn_args.{name} is {value}; give one between 0 and 1")
