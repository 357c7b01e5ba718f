"""OPMD: the reward less a baseline of the group, its mean or its soft maximum."""

from typing import Literal

import numpy as np

from trinity.algorithm.advantage.groups import check_choice, filter_low_std_groups
from trinity.algorithm.advantage.samples import Advantages, FloatVector, Samples
from trinity.algorithm.advantage.units import compare_units
from trinity.algorithm.units import Unit
from trinity.errors import UserError


def opmd(
    samples: Samples,
    *,
    opmd_baseline: Literal["mean", "logavgexp"] = "mean",
    tau: float = 1.0,
    std_threshold: float | None = None,
    unit: Unit = "run",
) -> Advantages:
    """A_i = r_i - b, [N], with b = mean(r) or b = tau log mean exp(r / tau) of i's group.

    A single unit has baseline 0.

    std_threshold: groups with a std of at most this, and groups of one, are left out.
    unit "run": each run counts once in its group, with the mean of its samples' rewards, and all
        its samples get its advantage; "sample": every sample counts.

    https://arxiv.org/abs/2505.17826, appendix; Kimi k1.5, https://arxiv.org/abs/2501.12599.
    """
    check_choice("opmd", "opmd_baseline", opmd_baseline, ("mean", "logavgexp"))
    if not tau > 0:
        raise UserError(f"tau of advantage function opmd is {tau}; in advantage_fn_args give > 0")
    return compare_units(
        samples, unit, lambda units: _less_baseline(units, opmd_baseline, tau, std_threshold)
    )


def _less_baseline(
    samples: Samples, opmd_baseline: str, tau: float, std_threshold: float | None
) -> Advantages:
    baselines_G = samples.group_baselines(samples.rewards)
    if opmd_baseline == "logavgexp":
        soft_maxima_G = _soft_maxima(samples, tau)
        baselines_G = np.where(samples.group_sizes > 1, soft_maxima_G, 0.0)
    advantages = Advantages(
        samples.rewards - baselines_G[samples.groups],
        metrics={
            "group_advantages/group_baseline": baselines_G,
            "group_advantages/reward_mean": samples.group_means(samples.rewards),
        },
    )
    return filter_low_std_groups(advantages, samples, std_threshold)


def _soft_maxima(samples: Samples, tau: float) -> FloatVector:
    """Returns tau log mean exp(r / tau) of each group, [G], without overflow."""
    maxima_G = samples.group_maxima(samples.rewards)
    parts_N = np.exp((samples.rewards - maxima_G[samples.groups]) / tau)
    return maxima_G + tau * np.log(samples.group_means(parts_N))
