"""GRPO over runs of several steps: the run's last reward, compared, counts for all its steps."""

from typing import Literal

import numpy as np

from trinity.algorithm.advantage.groups import check_choice, filter_low_std_groups, overall_std
from trinity.algorithm.advantage.needs import Arguments, Needs, needs
from trinity.algorithm.advantage.samples import Advantages, FloatVector, Samples


def _needs(arguments: Arguments) -> Needs:
    return Needs(whole_step=arguments.get("std_cal_level") == "batch")


@needs(_needs)
def step_wise_grpo(
    samples: Samples,
    *,
    epsilon: float = 1e-6,
    enable_step_norm: bool = False,
    std_threshold: float | None = None,
    std_cal_level: Literal["group", "batch", "none"] = "group",
) -> Advantages:
    """A_i = (R - mean) / (std + epsilon), [N], with R the last reward of i's run.

    Mean and unbiased std are over the runs of the group; a single run has mean 0 and std 1.

    enable_step_norm: A_i is divided by the number of steps of i's run.
    std_threshold: groups with a std of at most this, and groups of one run, are left out.
    std_cal_level "batch": the std over all runs of the explore step; "none": no division.

    GRPO: https://arxiv.org/abs/2402.03300.
    """
    check_choice("step_wise_grpo", "std_cal_level", std_cal_level, ("group", "batch", "none"))
    runs = samples.chosen(samples.is_last_step)
    means_G = runs.group_baselines(runs.rewards)
    deviations_G = runs.group_deviations(runs.rewards)
    scales_R: FloatVector | float = 1.0
    if std_cal_level != "none":
        one_for_all = std_cal_level == "batch"
        stds = overall_std(runs.rewards) if one_for_all else deviations_G[runs.groups]
        scales_R = stds + epsilon
    scores_R = (runs.rewards - means_G[runs.groups]) / scales_R
    if enable_step_norm:
        scores_R = scores_R / np.bincount(samples.run_numbers)
    metrics = {
        "group_advantages/reward_mean": means_G,
        "group_advantages/reward_std": deviations_G,
    }
    return filter_low_std_groups(
        Advantages(scores_R[samples.run_numbers], metrics=metrics),
        samples,
        std_threshold,
        compared=runs,
        deviations_G=deviations_G,
    )
