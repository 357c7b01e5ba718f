"""Rewards, which score responses; each has its own file."""

from trinity.plugins import REWARDS
from trinity.rewards.reward import RewardFn

__all__ = ["REWARDS", "RewardFn"]
