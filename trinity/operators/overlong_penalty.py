"""Subtracts DAPO's penalty from the rewards of responses that are nearly as long as they may be."""

import numpy as np

from trinity.errors import UserError
from trinity.operators.rollouts import Changes, Rollouts


def overlong_penalty(
    rollouts: Rollouts,
    *,
    max_response_length: int,
    cache_length: int,
    penalty_factor: float = 1.0,
) -> Changes:
    """r = r - penalty_factor min(max(n - (max - cache), 0) / cache, 1) for n response tokens.

    It is the penalty of `math_dapo_reward` for any other reward, as verl's reward manager `dapo`
    has it (https://arxiv.org/abs/2503.14476). Metrics: `overlong_fraction` and `overlong_penalty`,
    means of a group.
    """
    if not 0 < cache_length <= max_response_length:
        raise UserError(
            f"`overlong_penalty` has cache_length {cache_length} and max_response_length "
            f"{max_response_length}: give 0 < cache_length <= max_response_length, both in tokens"
        )
    excess_N = rollouts.response_lengths - (max_response_length - cache_length)
    penalties_N = penalty_factor * np.clip(excess_N / cache_length, 0.0, 1.0)
    return Changes(
        rewards=rollouts.rewards - penalties_N,
        metrics={
            "overlong_fraction": rollouts.group_means((excess_N > 0).astype(float)),
            "overlong_penalty": rollouts.group_means(penalties_N),
        },
    )
