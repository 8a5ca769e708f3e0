"""FrozenLake that fails on its own luck: steps raise or never return, asleep or spinning. For trainings in tests."""

from __future__ import annotations

import dataclasses
import time

from ragen.env.frozen_lake.config import FrozenLakeConfig
from ragen.env.frozen_lake.env import FrozenLake


@dataclasses.dataclass
class HostileFrozenLakeConfig(FrozenLakeConfig):
    raises: float = 0.05
    """Chance that a step raises."""
    hangs: float = 0.01
    """Chance that a step never returns; half of these sleep, half spin."""


class HostileFrozenLake(FrozenLake):
    config_class = HostileFrozenLakeConfig
    isolate = "process"

    def step(self, action):
        draw = self.luck_rng.random()
        if draw < self.config.raises:
            raise RuntimeError("the ice broke")
        draw -= self.config.raises
        if draw < self.config.hangs / 2:
            while True:
                pass
        if draw < self.config.hangs:
            time.sleep(1e6)
        return super().step(action)
