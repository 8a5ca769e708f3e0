"""An environment for tests: counts `add` up to a goal drawn from the seed; can be told to misbehave."""

import dataclasses
import time

from ragen.env.base import Env


@dataclasses.dataclass
class CountingConfig:
    goal_low: int = 2
    goal_high: int = 4
    #: step number (from 1) at which `misbehave` happens; 0: never
    fault_at: int = 0
    #: raise, sleep or spin
    fault: str = "raise"
    #: only members whose luck is divisible by this misbehave
    fault_every: int = 1


class CountingEnv(Env):
    config_class = CountingConfig
    isolate = "inline"

    def reset(self, seed, *, luck=None):
        self.seed_streams(seed, luck)
        self._luck = luck or 0
        self.goal = int(self.level_rng.integers(self.config.goal_low, self.config.goal_high + 1))
        self.count = self.steps = 0
        return self.render(), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.config.fault_at and self._luck % self.config.fault_every == 0:
            self._misbehave()
        self.count += action
        done = self.count >= self.goal
        info = {"action_is_valid": True, "action_is_effective": action > 0, "success": done}
        return self.render(), 1.0 if done else -0.25, done, False, info

    def _misbehave(self):
        if self.config.fault == "raise":
            raise RuntimeError("told to raise")
        while True:
            if self.config.fault == "sleep":
                time.sleep(3600)

    def render(self, mode="text"):
        return f"{self.count}/{self.goal}"

    def instruction(self):
        return f"Count to {self.goal}."

    def action_lookup(self):
        return {"Add": 1, "Wait": 0}

    def oracle_action(self):
        return "Add"


class SpokenEnv(CountingEnv):
    """The same game in free text: `add 1`, `add 0`."""

    def action_lookup(self):
        return None

    def step(self, action):
        return super().step(int(action.removeprefix("add ")))

    def random_action(self, rng):
        return f"add {rng.integers(2)}"

    def oracle_action(self):
        return None


class SilentEnv(SpokenEnv):
    """Free text of which nobody can draw an example."""

    def random_action(self, rng):
        return None
