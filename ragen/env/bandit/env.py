"""Two-armed bandit, one pull an episode: a sure small payout against a risky one that is better on average.

The seed decides the order in which the arms are named, so that no position is always right; the luck of the draw is
each episode's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen.env.bandit.config import BanditConfig
from ragen.env.base import Env


class Bandit(Env):
    config_class = BanditConfig
    isolate = "inline"

    def __init__(self, config: BanditConfig | None = None):
        super().__init__(config)
        self.arms = [self.config.low_arm, self.config.high_arm]
        self.reward_range = (min(0.0, self.config.low_reward), max(self.config.low_reward, self.config.high_reward))
        self._text, self._over = "", True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        self.seed_streams(seed, luck)
        self.arms = [self.config.low_arm, self.config.high_arm]
        self.level_rng.shuffle(self.arms)
        self._text, self._over = f"Arms: {self.arms[0]}, {self.arms[1]}", False
        return self._text, {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("the bandit's one pull is over; call reset first")
        if action not in (1, 2):
            return self._text, 0.0, False, False, self._info(False, False)
        self._over = True
        arm = self.arms[action - 1]
        high = arm == self.config.high_arm
        if high:
            reward = self.config.high_reward if self.luck_rng.random() < self.config.high_probability else 0.0
        else:
            reward = self.config.low_reward
        self._text = f"{arm} paid {reward:g}"
        return self._text, float(reward), True, False, self._info(True, high)

    @staticmethod
    def _info(valid: bool, success: bool) -> dict[str, Any]:
        return {"action_is_valid": valid, "action_is_effective": valid, "success": success}

    def render(self, mode: str = "text") -> str:
        if mode != "text":
            raise ValueError(f"bandit has no board to draw: mode {mode!r}; use 'text'")
        return self._text

    def instruction(self) -> str:
        return (
            "You pull one arm of a slot machine, once. One arm always pays a small sum; the other often pays nothing "
            "and sometimes a large sum. Their names hint at which is which. Choose the arm that pays more on average."
        )

    def action_lookup(self) -> Mapping[str, int]:
        """The two names in the order drawn from the seed: 1 is the first, 2 the second."""
        return {arm: number for number, arm in enumerate(self.arms, start=1)}

    def oracle_action(self) -> str | None:
        return None if self._over else self.config.high_arm
