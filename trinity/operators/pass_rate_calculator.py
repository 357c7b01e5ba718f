"""Measures the share of tasks that are neither solved nor out of reach."""

import numpy as np

from trinity.operators.rollouts import Changes, Rollouts

FEW, MOST = 1 / 16, 15 / 16


def pass_rate_calculator(rollouts: Rollouts) -> Changes:
    """Computes p, the mean reward of each group; leaves the samples unchanged.

    Metrics, as shares of the groups: `selection/valid_ratio` (0 < p < 1), `strict_valid_ratio`
    (1/16 < p < 15/16), and one for each of these bounds. The selector `difficulty_based` gets pass
    rates with or without this operator.
    """
    rates_G = rollouts.group_means(rollouts.rewards)
    shares = {
        "valid_ratio": (rates_G > 0) & (rates_G < 1),
        "strict_valid_ratio": (rates_G > FEW) & (rates_G < MOST),
        "<1_ratio": rates_G < 1,
        ">0_ratio": rates_G > 0,
        "<15_16_ratio": rates_G < MOST,
        ">1_16_ratio": rates_G > FEW,
    }
    metrics = {f"selection/{name}": share_G.astype(np.float64) for name, share_G in shares.items()}
    return Changes(metrics=metrics)
