"""GiGPO: compares whole runs with each other, and single steps with those from the same state."""

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np

from trinity.algorithm.advantage.groups import check_choice, filter_low_std_groups
from trinity.algorithm.advantage.needs import Arguments, Needs, needs
from trinity.algorithm.advantage.samples import (
    Advantages,
    FloatVector,
    IntVector,
    Samples,
    sums_by,
)

STEP_REWARD_KEY = "step_reward"
STATE_KEY = "env_state_hash"


def _needs(arguments: Arguments) -> Needs:
    return Needs(
        whole_step=True,
        step_reward_key=str(arguments.get("step_reward_key", STEP_REWARD_KEY)),
        state_key=str(arguments.get("env_state_hash_key", STATE_KEY)),
    )


@needs(_needs)
def gigpo(
    samples: Samples,
    *,
    omega: float = 1.0,
    gamma: float = 1.0,
    fnorm: Literal["none", "std"] = "none",
    epsilon: float = 1e-6,
    step_reward_key: str = "step_reward",  # noqa: ARG001 - the pipeline reads them by these keys
    env_state_hash_key: str = "env_state_hash",  # noqa: ARG001
    std_threshold: float | None = None,
) -> Advantages:
    """A_i = A_E + omega A_S, [N].

    A_E = (R - mean) / (F + epsilon), R the sum of the step rewards of i's run, mean over the runs
    of the group. A_S is the same of the discounted return R_t = sum over k of gamma^k r_(t+k),
    compared with all steps of the explore step from the same state. F is 1, or the unbiased std
    with fnorm "std"; a single run has A_E = R / (1 + epsilon), a single step A_S = 0.

    In a run without step rewards the last step gets the reward of its sample.

    std_threshold: groups whose R have a std of at most this, and groups of one run, are left out.

    https://arxiv.org/abs/2505.10978.
    """
    check_choice("gigpo", "fnorm", fnorm, ("none", "std"))
    rewards_N = _step_rewards(samples)
    runs = samples.chosen(samples.is_last_step)
    totals_R = sums_by(samples.run_numbers, rewards_N, len(runs.rewards))
    means_G = runs.group_baselines(totals_R)
    episode_advantages_N = _normalized_in_groups(runs, totals_R, fnorm, epsilon)[
        samples.run_numbers
    ]
    returns_N = _discounted_returns(samples, rewards_N, gamma)
    anchors = replace(samples, groups=_state_groups(samples.states))
    is_shared_N = anchors.group_sizes[anchors.groups] > 1
    step_advantages_N = np.where(
        is_shared_N, _normalized_in_groups(anchors, returns_N, fnorm, epsilon), 0.0
    )
    deviations_G = runs.group_deviations(totals_R)
    advantages = Advantages(
        episode_advantages_N + omega * step_advantages_N,
        metrics={
            "gigpo/episode_reward_mean": means_G,
            "gigpo/episode_reward_std": deviations_G,
            "gigpo/anchor_group_hit_ratio": samples.group_means(is_shared_N.astype(np.float64)),
            "gigpo/mean_abs_A_E": samples.group_means(np.abs(episode_advantages_N)),
            "gigpo/mean_abs_A_S": samples.group_means(np.abs(step_advantages_N)),
        },
    )
    return filter_low_std_groups(
        advantages, samples, std_threshold, compared=runs, deviations_G=deviations_G
    )


def _step_rewards(samples: Samples) -> FloatVector:
    """Returns the reward of each step, [N]."""
    is_given_N = ~np.isnan(samples.step_rewards)
    run_numbers = samples.run_numbers
    has_any_R = np.bincount(run_numbers, weights=is_given_N) > 0
    given_N = np.where(is_given_N, samples.step_rewards, 0.0)
    last_N = np.where(samples.is_last_step, samples.rewards, 0.0)
    return np.where(has_any_R[run_numbers], given_N, last_N)


def _discounted_returns(samples: Samples, rewards_N: FloatVector, gamma: float) -> FloatVector:
    """Computes returns backwards through all runs at once, one step at a time, [N]."""
    returns_N = rewards_N.copy()
    is_last_N = samples.is_last_step
    left_N = np.flatnonzero(is_last_N)[samples.run_numbers] - np.arange(len(is_last_N))
    order_N = np.argsort(left_N, kind="stable")
    ends = np.cumsum(np.bincount(left_N))
    for start, end in pairwise(ends):
        own = order_N[start:end]
        returns_N[own] += gamma * returns_N[own + 1]
    return returns_N


def _state_groups(states_N: IntVector) -> IntVector:
    """Numbers the states from 0; an unknown state differs from all others, [N]."""
    _, numbers_N = np.unique(states_N, return_inverse=True)
    is_unknown_N = states_N < 0
    fresh_N = len(states_N) + np.arange(len(states_N))
    _, dense_N = np.unique(np.where(is_unknown_N, fresh_N, numbers_N), return_inverse=True)
    return dense_N.astype(np.int64)


def _normalized_in_groups(
    samples: Samples, values_N: FloatVector, fnorm: str, epsilon: float
) -> FloatVector:
    """Returns values less their group's mean, optionally in standard deviations, [N]."""
    scales_G = samples.group_deviations(values_N)
    if fnorm == "none":
        scales_G = np.ones_like(scales_G)
    baselines_G = samples.group_baselines(values_N)
    return (values_N - baselines_G[samples.groups]) / (scales_G[samples.groups] + epsilon)
