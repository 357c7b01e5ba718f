"""Ranks and places within groups, without a loop over groups."""

import numpy as np

from trinity.algorithm.advantage.samples import FloatVector, IntVector


def ranks_within(groups_N: IntVector, values_N: FloatVector) -> IntVector:
    """Ranks values within their groups from 0, the least, [N]; ties keep their order."""
    order_N = np.lexsort((values_N, groups_N))
    ranks_N = np.empty(len(groups_N), dtype=np.int64)
    ranks_N[order_N] = places_within(groups_N[order_N])
    return ranks_N


def places_within(groups_N: IntVector) -> IntVector:
    """Returns each sample's place in its group, from 0, [N]; groups must be contiguous."""
    numbers_N = np.arange(len(groups_N), dtype=np.int64)
    begins_N = np.ones(len(groups_N), dtype=np.bool_)
    begins_N[1:] = groups_N[1:] != groups_N[:-1]
    starts_N: IntVector = np.maximum.accumulate(np.where(begins_N, numbers_N, 0))
    return numbers_N - starts_N
