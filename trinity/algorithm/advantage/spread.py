"""Groups whose rewards tell too little: leaving them out, and what may stand in for them."""

import numpy as np

from trinity.algorithm.advantage.order import places_within
from trinity.algorithm.advantage.samples import BoolVector, FloatVector, IntVector, Samples


def flat_groups(samples: Samples, deviations_G: FloatVector, threshold: float) -> BoolVector:
    """Groups with a standard deviation of at most `threshold`, and those of one sample, [G]."""
    return (deviations_G <= threshold) | (samples.group_sizes <= 1)


def reason_of(threshold: float) -> str:
    """Why such a group is left out."""
    return f"the rewards of its group have a standard deviation of at most {threshold:g}"


def deviation_of_all(values_N: FloatVector) -> float:
    """Standard deviation over all groups; 1 of a single value."""
    return float(np.std(values_N, ddof=1)) if len(values_N) > 1 else 1.0


def draw_copies(samples: Samples, is_left_out_G: BoolVector) -> IntVector:
    """For each sample of a group that is left out one of another group, drawn by lot, [N].

    All samples of a group are replaced by those of one other; -1 where there is none.
    """
    copies_N = np.full(len(samples.groups), -1, dtype=np.int64)
    donors_D = np.flatnonzero(~is_left_out_G & (samples.group_sizes > 0))
    if not len(donors_D):
        return copies_N
    starts_G = np.cumsum(samples.group_sizes) - samples.group_sizes
    first_lots_G = samples.lots[np.minimum(starts_G, len(copies_N) - 1)]
    donor_G = donors_D[(first_lots_G * len(donors_D)).astype(np.int64)]
    donor_N = donor_G[samples.groups]
    places_N = places_within(samples.groups) % samples.group_sizes[donor_N]
    return np.where(is_left_out_G[samples.groups], starts_G[donor_N] + places_N, copies_N)
