"""Leaves out samples whose reward is no number that anybody gave."""

import numpy as np

from trinity.operators.rollouts import Changes, Rollouts


def invalid_reward_filter(rollouts: Rollouts) -> Changes:
    """Leaves out samples without a reward, which else count with 0: their prompts were too long.

    NaN and infinity never come so far: a run that gives them is refused when it arrives.
    """
    is_valid_N = rollouts.has_reward & np.isfinite(rollouts.rewards)
    return Changes(left_out=~is_valid_N, reason="it has no reward")
