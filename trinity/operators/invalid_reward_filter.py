"""Leaves out samples without a valid reward."""

import numpy as np

from trinity.operators.rollouts import Changes, Rollouts


def invalid_reward_filter(rollouts: Rollouts) -> Changes:
    """Leaves out samples without a reward, which otherwise count as 0: their prompts were too long.

    NaN and infinity do not occur here: a run with such rewards is refused when it arrives.
    """
    is_valid_N = rollouts.has_reward & np.isfinite(rollouts.rewards)
    return Changes(left_out=~is_valid_N, reason="it has no reward")
