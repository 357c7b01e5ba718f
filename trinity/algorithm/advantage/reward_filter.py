"""RAFT's filter: trains on samples that did well and leaves out all others."""

from trinity.algorithm.advantage.samples import Advantages, Samples
from trinity.algorithm.advantage.units import compare_units
from trinity.algorithm.units import Unit


def reward_filter(
    samples: Samples, *, threshold: float | None = None, unit: Unit = "run"
) -> Advantages:
    """A_i = 1 where r_i is good enough, else 0 and left out, [N].

    Good enough is r_i >= threshold; without one, r_i > mean(r of i's group), so that a group of
    equal rewards is left out completely. A single unit is compared with 0.

    unit "run": each run counts once in its group, with the mean of its samples' rewards, and all
        its samples get its advantage; "sample": every sample counts.

    https://arxiv.org/abs/2304.06767.
    """
    return compare_units(samples, unit, lambda units: _good_enough(units, threshold))


def _good_enough(samples: Samples, threshold: float | None) -> Advantages:
    if threshold is None:
        means_G = samples.group_baselines(samples.rewards)
        is_good_N = samples.rewards > means_G[samples.groups]
        reason = "its reward is not above its group's mean"
    else:
        is_good_N = samples.rewards >= threshold
        reason = f"its reward is below {threshold:g}"
    return Advantages(is_good_N.astype(float), left_out=~is_good_N, reason=reason)
