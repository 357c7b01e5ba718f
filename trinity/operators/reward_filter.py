"""Keeps the samples whose reward is high enough."""

from trinity.operators.rollouts import Changes, Rollouts


def reward_filter(rollouts: Rollouts, *, threshold: float = 0.0) -> Changes:
    """Leaves out samples with r_i < threshold."""
    return Changes(
        left_out=rollouts.rewards < threshold, reason=f"its reward is below {threshold:g}"
    )
