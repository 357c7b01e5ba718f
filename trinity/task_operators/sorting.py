"""Sorts more numbers than fit in memory: a radix sort on disk, 16 bits at a time."""

import numpy as np
import numpy.typing as npt

from trinity.task_operators.columns import Numbers, on_disk, parts_of

DIGIT_BITS = 16
KEY_BITS = 64
NUM_DIGITS = 1 << DIGIT_BITS
SIGN = np.uint64(1 << 63)
Keys = npt.NDArray[np.uint64]


def rising_keys(numbers_N: npt.NDArray[np.float64]) -> Keys:
    """Returns integers in the same order, equal where the numbers are; NaN comes last."""
    plain_N = np.where(np.isnan(numbers_N), np.nan, numbers_N) + 0.0  # a single NaN, and no -0.0
    bits_N = plain_N.view(np.uint64)
    keys_N: Keys = np.where(bits_N & SIGN, ~bits_N, bits_N | SIGN)
    return keys_N


def rising_places(size: int) -> Numbers:
    """Returns 0, 1, 2 and so on, stored on disk."""
    places_N = on_disk(size, np.int64)
    for part in parts_of(size):
        places_N[part] = np.arange(part.start, part.stop)
    return places_N


def sorted_places(keys_N: Keys) -> Numbers:
    """Returns the indices of the keys in rising order (stable); overwrites the keys."""
    places_N = rising_places(len(keys_N))
    other_keys_N, other_places_N = on_disk(len(keys_N), np.uint64), on_disk(len(keys_N), np.int64)
    for shift in range(0, KEY_BITS, DIGIT_BITS):
        counts = _counts(keys_N, shift)
        if counts.max() == len(keys_N):
            continue
        free = np.cumsum(counts) - counts
        for part in parts_of(len(keys_N)):
            digits = _digits(keys_N[part], shift)
            order = np.argsort(digits, kind="stable")
            rising = digits[order]
            ranks = np.arange(len(rising)) - np.searchsorted(rising, rising)
            to = free[rising] + ranks
            other_keys_N[to] = keys_N[part][order]
            other_places_N[to] = places_N[part][order]
            free += np.bincount(digits, minlength=NUM_DIGITS)
        keys_N, other_keys_N = other_keys_N, keys_N
        places_N, other_places_N = other_places_N, places_N
    return places_N


def _counts(keys_N: Keys, shift: int) -> npt.NDArray[np.int64]:
    counts = np.zeros(NUM_DIGITS, dtype=np.int64)
    for part in parts_of(len(keys_N)):
        counts += np.bincount(_digits(keys_N[part], shift), minlength=NUM_DIGITS)
    return counts


def _digits(keys: Keys, shift: int) -> npt.NDArray[np.uint16]:
    return (keys >> np.uint64(shift)).astype(np.uint16)
