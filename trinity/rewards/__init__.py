"""Rewards, which score responses; each has its own file."""

from trinity.rewards.reward import RewardFn

__all__ = ["RewardFn"]
