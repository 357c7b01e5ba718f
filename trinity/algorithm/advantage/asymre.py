"""AsymRE: the reward less the group's mean, shifted so that good samples weigh more than bad."""

import numpy as np

from trinity.algorithm.advantage.groups import filter_low_std_groups
from trinity.algorithm.advantage.samples import Advantages, Samples
from trinity.algorithm.advantage.units import compare_units
from trinity.algorithm.units import Unit


def asymre(
    samples: Samples,
    *,
    baseline_shift: float = -0.1,
    std_threshold: float | None = None,
    unit: Unit = "run",
) -> Advantages:
    """A_i = r_i - (mean(r of i's group) + baseline_shift), [N]; a single unit has baseline 0.

    std_threshold: groups with a std of at most this, and groups of one, are left out.
    unit "run": each run counts once in its group, with the mean of its samples' rewards, and all
        its samples get its advantage; "sample": every sample counts.

    https://arxiv.org/abs/2506.20520.
    """
    return compare_units(
        samples, unit, lambda units: _shifted(units, baseline_shift, std_threshold)
    )


def _shifted(samples: Samples, baseline_shift: float, std_threshold: float | None) -> Advantages:
    means_G = samples.group_means(samples.rewards)
    baselines_G = np.where(samples.group_sizes > 1, means_G + baseline_shift, 0.0)
    advantages = Advantages(
        samples.rewards - baselines_G[samples.groups],
        metrics={
            "group_advantages/group_baseline": baselines_G,
            "group_advantages/reward_mean": means_G,
        },
    )
    return filter_low_std_groups(advantages, samples, std_threshold)
