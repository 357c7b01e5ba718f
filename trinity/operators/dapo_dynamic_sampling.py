"""Keeps the groups that are neither all correct nor all wrong."""

import numpy as np

from trinity.algorithm.advantage.needs import Arguments, Needs, needs
from trinity.operators.rollouts import Changes, Rollouts


def _needs(arguments: Arguments) -> Needs:
    return Needs(numbers=(str(arguments.get("metric_key", "accuracy")),))


@needs(_needs)
def dapo_dynamic_sampling(
    rollouts: Rollouts, *, metric_key: str = "accuracy", correct_threshold: float = 0.0
) -> Changes:
    """Keeps groups with 0 < c < n, where c of a group's n samples are correct.

    A sample is correct if its value under metric_key, or its reward without one, is greater than
    correct_threshold; a group of one is not informative. Other tasks are drawn to replace dropped
    ones (https://arxiv.org/abs/2503.14476). Metrics, in groups: `dropped_all_correct`,
    `dropped_all_wrong`.
    """
    known_N = rollouts.numbers[metric_key]
    scores_N = np.where(np.isnan(known_N), rollouts.rewards, known_N)
    correct_G = rollouts.group_sums((scores_N > correct_threshold).astype(float))
    has_none_G, has_all_G = correct_G == 0, correct_G == rollouts.group_sizes
    return Changes(
        left_out=(has_none_G | has_all_G)[rollouts.groups],
        reason="the samples of its group are all correct or all wrong",
        metrics={
            "dropped_all_correct": (has_all_G & ~has_none_G).astype(float),
            "dropped_all_wrong": (has_none_G & ~has_all_G).astype(float),
        },
    )
