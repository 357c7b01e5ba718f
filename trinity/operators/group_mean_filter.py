"""Keeps the groups whose mean is neither too low nor too high to learn from."""

import numpy as np

from trinity.algorithm.advantage.needs import Arguments, Needs, needs
from trinity.operators.rollouts import Changes, Rollouts

_ROUNDING = 1e-6
"""Tolerance for means that equal a bound, such as one right answer of five."""


def _needs(arguments: Arguments) -> Needs:
    key = str(arguments.get("metric_key", ""))
    return Needs(numbers=(key,) if key else ())


@needs(_needs)
def group_mean_filter(
    rollouts: Rollouts, *, metric_key: str = "", lower: float = 0.01, upper: float = 0.99
) -> Changes:
    """Keeps groups with lower <= mean <= upper, of metric_key or else of the rewards.

    Other tasks are drawn to replace dropped ones. Samples without the number count with their
    reward. Metrics, in groups: `dropped_low`, `dropped_high`.
    """
    values_N = rollouts.rewards
    if metric_key:
        known_N = rollouts.numbers[metric_key]
        values_N = np.where(np.isnan(known_N), values_N, known_N)
    means_G = rollouts.group_means(values_N)
    is_low_G, is_high_G = means_G < lower - _ROUNDING, means_G > upper + _ROUNDING
    return Changes(
        left_out=(is_low_G | is_high_G)[rollouts.groups],
        reason=f"the mean of its group is not from {lower:g} to {upper:g}",
        metrics={
            "dropped_low": is_low_G.astype(float),
            "dropped_high": is_high_G.astype(float),
        },
    )
