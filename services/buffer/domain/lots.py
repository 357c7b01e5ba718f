"""Reproducible pseudo-random numbers: one per sample, hashed from its position."""

import numpy as np
import numpy.typing as npt

IntVector = npt.NDArray[np.int64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
BITS = 53


def draw_lots(seed: int, *places_N: IntVector) -> npt.NDArray[np.float64]:
    """Returns a number in [0, 1) per sample, from the seed and its position, [N].

    SplitMix64 over the numbers, one after the other (https://doi.org/10.1145/2660193.2660195).
    """
    state_N = np.full(places_N[0].shape, seed % 2**64, dtype=np.uint64)
    for numbers_N in places_N:
        state_N = _mixed(state_N ^ _mixed(numbers_N.astype(np.uint64)))
    return (state_N >> np.uint64(64 - BITS)).astype(np.float64) * 2.0**-BITS


def _mixed(state_N: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed_N = state_N + GOLDEN
    mixed_N = (mixed_N ^ (mixed_N >> np.uint64(30))) * FIRST
    mixed_N = (mixed_N ^ (mixed_N >> np.uint64(27))) * SECOND
    return mixed_N ^ (mixed_N >> np.uint64(31))
