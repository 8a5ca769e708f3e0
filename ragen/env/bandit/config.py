"""Settings of the two-armed bandit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BanditConfig:
    low_arm: str = "Phoenix"
    """Name of the arm that pays a small sum every time."""
    high_arm: str = "Dragon"
    """Name of the arm that pays a large sum now and then: the better one on average."""
    low_reward: float = 0.1
    high_reward: float = 1.0
    high_probability: float = 0.25
    """Chance that the high arm pays `high_reward`; otherwise it pays 0."""

    def __post_init__(self):
        if self.low_arm.lower() == self.high_arm.lower():
            raise ValueError(f"low_arm and high_arm are both {self.low_arm!r}; give them different names")
        if not 0 <= self.high_probability <= 1:
            raise ValueError(f"high_probability {self.high_probability} must lie between 0 and 1")
        if self.high_reward * self.high_probability <= self.low_reward:
            raise ValueError(
                f"high_arm would pay {self.high_reward * self.high_probability} on average, no more than low_reward "
                f"{self.low_reward}; raise high_reward or high_probability"
            )
