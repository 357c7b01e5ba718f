"""REINFORCE: the reward itself."""

from trinity.algorithm.advantage.groups import filter_low_std_groups
from trinity.algorithm.advantage.samples import Advantages, Samples


def reinforce(samples: Samples, *, std_threshold: float | None = None) -> Advantages:
    """A_i = r_i, [N].

    std_threshold: groups with a std of at most this, and groups of one, are left out.

    Williams 1992, https://doi.org/10.1007/BF00992696; TOPR builds on it.
    """
    return filter_low_std_groups(Advantages(samples.rewards.copy()), samples, std_threshold)
