"""REINFORCE: the reward itself."""

from trinity.algorithm.advantage.samples import Advantages, Samples


def reinforce(samples: Samples) -> Advantages:
    """A_i = r_i, [N].

    Williams 1992, https://doi.org/10.1007/BF00992696; TOPR builds on it.
    """
    return Advantages(samples.rewards.copy())
