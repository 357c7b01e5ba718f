"""REC: REINFORCE with the group's mean as baseline, optionally balancing bad and good samples."""

from typing import Literal

import numpy as np

from trinity.algorithm.advantage.groups import check_choice, filter_low_std_groups, ranks_within
from trinity.algorithm.advantage.samples import Advantages, BoolVector, Samples
from trinity.algorithm.advantage.units import compare_units
from trinity.algorithm.units import Unit


def rec(
    samples: Samples,
    *,
    epsilon: float = 1e-6,
    std_normalize: bool = False,
    drop: Literal["balance"] | None = None,
    std_threshold: float | None = None,
    unit: Unit = "run",
) -> Advantages:
    """A_i = r_i - mean(r of i's group), [N]; a single unit keeps its reward.

    std_normalize: divided by the group's population std + epsilon.
    drop "balance": where a group has more samples below its mean than others, the surplus,
        drawn at random, gets A = 0; mean and std are then those of the remaining samples.

    std_threshold: groups with a std of at most this, and groups of one, are left out.
    unit "run": each run counts once in its group, with the mean of its samples' rewards, and all
        its samples get its advantage; "sample": every sample counts.

    https://arxiv.org/abs/2509.24203.
    """
    if drop is not None:
        check_choice("rec", "drop", drop, ("balance",))
    return compare_units(
        samples,
        unit,
        lambda units: _compared(units, epsilon, std_normalize, drop, std_threshold),
    )


def _compared(
    samples: Samples,
    epsilon: float,
    std_normalize: bool,
    drop: str | None,
    std_threshold: float | None,
) -> Advantages:
    is_kept_N = np.ones(len(samples.rewards), dtype=np.bool_)
    if drop == "balance":
        is_kept_N = _balanced(samples)
    kept = samples.chosen(is_kept_N)
    means_G = kept.group_baselines(kept.rewards)
    deviations_G = kept.group_deviations(kept.rewards, ddof=0)
    values_N = samples.rewards - means_G[samples.groups]
    if std_normalize:
        values_N = values_N / (deviations_G[samples.groups] + epsilon)
    advantages = Advantages(
        np.where(is_kept_N, values_N, 0.0),
        metrics={
            "group_advantages/reward_mean": means_G,
            "group_advantages/reward_std": deviations_G,
            "group_advantages/drop_balance": samples.group_means(np.where(is_kept_N, 0.0, 1.0)),
        },
    )
    return filter_low_std_groups(advantages, samples, std_threshold)


def _balanced(samples: Samples) -> BoolVector:
    """Selects samples so that no group has more of them below its mean than others, [N]."""
    is_bad_N = samples.rewards < samples.group_means(samples.rewards)[samples.groups]
    num_good_G = samples.group_sums(np.where(is_bad_N, 0.0, 1.0))
    is_kept_N = np.ones(len(is_bad_N), dtype=np.bool_)
    bad_groups = samples.groups[is_bad_N]
    is_kept_N[is_bad_N] = ranks_within(bad_groups, samples.lots[is_bad_N]) < num_good_G[bad_groups]
    return is_kept_N
