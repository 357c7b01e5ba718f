"""Keeps the groups whose rewards differ enough to learn from."""

import numpy as np

from trinity.operators.rollouts import Changes, Rollouts


def reward_std_filter(rollouts: Rollouts, *, threshold: float = 0.0) -> Changes:
    """Leaves out groups with std(r) <= threshold, and groups of one; std is the population's.

    Metrics: `operator_filtered_count`, and `origin_group_advantages/reward_mean` and
    `.../reward_std` of all groups before filtering.
    """
    is_compared_G = rollouts.group_sizes > 1
    deviations_G = rollouts.group_deviations(rollouts.rewards, ddof=0) * is_compared_G
    is_flat_G = (deviations_G <= threshold) | ~is_compared_G
    return Changes(
        left_out=is_flat_G[rollouts.groups],
        reason=f"the rewards of its group have a standard deviation of at most {threshold:g}",
        metrics={
            "operator_filtered_count": np.where(is_flat_G, rollouts.group_sizes, 0).astype(float),
            "origin_group_advantages/reward_mean": rollouts.group_means(rollouts.rewards),
            "origin_group_advantages/reward_std": deviations_G,
        },
    )
