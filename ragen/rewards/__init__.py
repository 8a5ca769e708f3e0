"""Rewards of the user's own (`reward.path`), and one that comes with RAGEN: a judge."""

from ragen.rewards.function import RewardError, RewardFunction

__all__ = ["RewardError", "RewardFunction"]
