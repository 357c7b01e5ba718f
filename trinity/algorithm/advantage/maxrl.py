"""MaxRL: the reward less the group's mean, divided by the mean: rarely solved tasks weigh more."""

from dataclasses import replace

import numpy as np

from trinity.algorithm.advantage.groups import filter_low_std_groups
from trinity.algorithm.advantage.samples import Advantages, Samples
from trinity.algorithm.advantage.units import compare_units
from trinity.algorithm.units import Unit


def maxrl(
    samples: Samples, *, std_threshold: float | None = None, unit: Unit = "run"
) -> Advantages:
    """A_i = (r_i - mean) / mean, [N], with the mean of i's group; 0 if that mean is 0.

    For rewards of 0 and 1 it is the gradient of the log-likelihood of a right answer, estimated
    from the right ones alone, with the group's scores as control variate. A group with a negative
    reward has no likelihood and is left out; a single unit gets 0.

    std_threshold: groups with a std of at most this, and groups of one, are left out.
    unit "run": each run counts once in its group, with the mean of its samples' rewards, and all
        its samples get its advantage; "sample": every sample counts.

    https://arxiv.org/abs/2602.02710.
    """
    return compare_units(samples, unit, lambda units: _over_the_mean(units, std_threshold))


def _over_the_mean(samples: Samples, std_threshold: float | None) -> Advantages:
    means_G = samples.group_means(samples.rewards)
    is_negative_G = samples.group_sums((samples.rewards < 0).astype(np.float64)) > 0
    is_used_G = (means_G > 0) & ~is_negative_G
    scales_N = np.where(is_used_G, means_G, 1.0)[samples.groups]
    values_N = (samples.rewards - means_G[samples.groups]) / scales_N
    advantages = Advantages(
        np.where(is_used_G[samples.groups], values_N, 0.0),
        metrics={
            "group_advantages/reward_mean": means_G,
            "group_advantages/reward_std": samples.group_deviations(samples.rewards),
        },
    )
    advantages = filter_low_std_groups(advantages, samples, std_threshold)
    if not is_negative_G.any():
        return advantages
    is_negative_N = is_negative_G[samples.groups]
    left_out = is_negative_N if advantages.left_out is None else advantages.left_out | is_negative_N
    reason = "its group has a negative reward, for which maxrl has no likelihood"
    also = f"{advantages.reason}, or " if advantages.reason else ""
    return replace(advantages, left_out=left_out, reason=also + reason)
