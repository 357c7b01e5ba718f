"""What scores a response: one reward a file."""

from trinity.rewards.reward import RewardFn

__all__ = ["RewardFn"]
