"""GRPO for pass@k: only the best sample of a group counts, by its lead over the next."""

import numpy as np

from trinity.algorithm.advantage.groups import filter_low_std_groups, ranks_within
from trinity.algorithm.advantage.samples import Advantages, Samples
from trinity.algorithm.advantage.units import compare_units
from trinity.algorithm.units import Unit


def grpo_passk(
    samples: Samples,
    *,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    std_threshold: float | None = None,
    unit: Unit = "run",
) -> Advantages:
    """A = (r_max - r_second) / (std + epsilon) for the best unit of a group, else 0, [N].

    The std is the group's unbiased one; norm_adv_by_std_in_grpo=False omits the division. A
    single unit has no lead: 0.

    std_threshold: groups with a std of at most this, and groups of one, are left out.
    unit "run": each run counts once in its group, with the mean of its samples' rewards, and all
        its samples get its advantage; "sample": every sample counts.

    https://arxiv.org/abs/2503.19595.
    """
    return compare_units(
        samples, unit, lambda units: _leads(units, epsilon, norm_adv_by_std_in_grpo, std_threshold)
    )


def _leads(
    samples: Samples, epsilon: float, norm_adv_by_std_in_grpo: bool, std_threshold: float | None
) -> Advantages:
    ranks_N = ranks_within(samples.groups, -samples.rewards)
    is_best_N, is_second_N = ranks_N == 0, ranks_N == 1
    best_G = samples.group_sums(np.where(is_best_N, samples.rewards, 0.0))
    second_G = samples.group_sums(np.where(is_second_N, samples.rewards, 0.0))
    leads_G = np.where(samples.group_sizes > 1, best_G - second_G, 0.0)
    deviations_G = samples.group_deviations(samples.rewards)
    if norm_adv_by_std_in_grpo:
        leads_G = leads_G / (deviations_G + epsilon)
    advantages = Advantages(
        np.where(is_best_N, leads_G[samples.groups], 0.0),
        metrics={
            "group_advantages/reward_mean": samples.group_means(samples.rewards),
            "group_advantages/reward_std": deviations_G,
        },
    )
    return filter_low_std_groups(advantages, samples, std_threshold, deviations_G=deviations_G)
