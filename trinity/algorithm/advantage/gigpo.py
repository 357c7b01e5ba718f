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
        whole_step=arguments.get("anchors") == "all",
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
    anchors: Literal["group", "all"] = "group",
    std_threshold: float | None = None,
) -> Advantages:
    """A_i = A_E + omega A_S, [N].

    A_E = (R - mean) / (F + epsilon), R the sum of the step rewards of i's run, mean over the runs
    of the group. A_S is the same of the discounted return R_t = sum over k of gamma^k r_(t+k),
    compared with all steps of the group from the same state, as by the authors, or of the whole
    explore step with anchors "all", as in Trinity-RFT. F is 1, or the unbiased std with fnorm
    "std"; a single run has A_E = R / (1 + epsilon), a single step A_S = 0.

    In a run without step rewards the last step gets the reward of its sample.

    std_threshold: groups whose R have a std of at most this, and groups of one run, are left out.

    https://arxiv.org/abs/2505.10978.
    """
    check_choice("gigpo", "fnorm", fnorm, ("none", "std"))
    check_choice("gigpo", "anchors", anchors, ("group", "all"))
    rewards_N = _step_rewards(samples)
    runs = samples.chosen(samples.is_last_step)
    totals_R = sums_by(samples.run_numbers, rewards_N, len(runs.rewards))
    means_G = runs.group_baselines(totals_R)
    episode_advantages_N = _normalized_in_groups(runs, totals_R, fnorm, epsilon)[
        samples.run_numbers
    ]
    returns_N = _discounted_returns(samples, rewards_N, gamma)
    at_states = replace(samples, groups=_state_groups(samples, within_groups=anchors == "group"))
    is_shared_N = at_states.group_sizes[at_states.groups] > 1
    step_advantages_N = np.where(
        is_shared_N, _normalized_in_groups(at_states, returns_N, fnorm, epsilon), 0.0
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


def _state_groups(samples: Samples, *, within_groups: bool) -> IntVector:
    """Numbers the states from 0; an unknown state differs from all others, [N]."""
    states_N, size = samples.states, len(samples.states)
    places_N = samples.groups if within_groups else np.zeros_like(states_N)
    fresh_N = np.where(states_N < 0, np.arange(size), size)
    keys_N3 = np.stack([states_N, places_N, fresh_N], axis=-1)
    _, dense_N = np.unique(keys_N3, axis=0, return_inverse=True)
    return dense_N.reshape(-1).astype(np.int64)


def _normalized_in_groups(
    samples: Samples, values_N: FloatVector, fnorm: str, epsilon: float
) -> FloatVector:
    """Returns values less their group's mean, optionally in standard deviations, [N]."""
    scales_G = samples.group_deviations(values_N)
    if fnorm == "none":
        scales_G = np.ones_like(scales_G)
    baselines_G = samples.group_baselines(values_N)
    return (values_N - baselines_G[samples.groups]) / (scales_G[samples.groups] + epsilon)
