"""Environments with one fault each: what `python -m ragen.env.check` must find, and nothing else.

All of them are the same sound game (`Sound`, or `Spoken` in free text): count to a goal drawn from the seed, where an
unlucky `Add` slips. Imports nothing heavy: worker processes import it.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field

import numpy as np

from ragen.env.base import Env


@dataclass
class GameConfig:
    max_steps: int = 12
    slip: float = 0.3


class Sound(Env):
    """Nothing is wrong with it."""

    config_class = GameConfig
    reward_range = (-0.1, 1.0)

    def __init__(self, config: GameConfig | None = None):
        super().__init__(config)
        self.over = True

    def reset(self, seed, *, luck=None):
        self.seed_streams(seed, luck)
        self.goal = int(self.level_rng.integers(2, 6))
        self.words = int(self.level_rng.integers(1000))
        self.count = self.steps = 0
        self.over = False
        return self.render(), {}

    def step(self, action):
        if self.over:
            raise RuntimeError("the episode is over; call reset first")
        valid = action in (0, 1)
        moved = action == 1 and not self.slips()
        self.count += moved
        self.steps += 1
        solved = self.count == self.goal
        truncated = not solved and self.steps >= self.config.max_steps
        self.over = solved or truncated
        info = {"action_is_valid": valid, "action_is_effective": bool(moved), "success": solved}
        return self.render(), 1.0 if solved else -0.1, solved, truncated, info

    def slips(self):
        return self.luck_rng.random() < self.config.slip

    def render(self, mode="text"):
        return f"game {self.words}: {self.count} of {self.goal}"

    def instruction(self):
        return f"Count to the goal. An Add slips {self.config.slip:.0%} of the time. Reward: 1 at the goal, else -0.1."

    def action_lookup(self):
        return {"Add": 1, "Wait": 0}

    def oracle_action(self):
        return None if self.over else "Add"


class Spoken(Sound):
    """The same in free text: `add` and `wait`."""

    def action_lookup(self):
        return None

    def step(self, action):
        return super().step({"add": 1, "wait": 0}.get(self.read(action)))

    def read(self, action):
        return action

    def random_action(self, rng):
        return ("add", "wait")[rng.integers(2)]

    def oracle_action(self):
        return None if self.over else "add"


# --- it cannot be built or breaks off ---------------------------------------------------------------------------------


class NotBuilt(Sound):
    def __init__(self, config=None):
        raise FileNotFoundError("no data set here")


class RaisesAtTheGoal(Sound):
    def step(self, action):
        result = super().step(action)
        if result[2]:
            raise KeyError("goal")
        return result


class HangsOnEmpty(Spoken):
    def read(self, action):
        while not action.strip():
            time.sleep(0.01)
        return action


class HangsInReset(Sound):
    def reset(self, seed, *, luck=None):
        while seed == 10_002:
            pass
        return super().reset(seed, luck=luck)


class DiesOfLength(Spoken):
    def read(self, action):
        if len(action) > 10_000:
            os._exit(5)
        return action


class RaisesOnEmpty(Spoken):
    def read(self, action):
        return action.split()[0]


class EvaluatesActions(Spoken):
    """Python's own parser meets whatever the model says."""

    def read(self, action):
        compile(action, "action", "eval")
        return action


# --- what the methods return ------------------------------------------------------------------------------------------


class FourValues(Sound):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


class InfoLacksKey(Sound):
    def step(self, action):
        *rest, info = super().step(action)
        del info["action_is_effective"]
        return *rest, info


class SuccessIsText(Sound):
    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {**info, "success": "yes" if info["success"] else "no"}


class SilentInstruction(Sound):
    def instruction(self):
        return "  "


class UndeclaredRange(Sound):
    reward_range = Env.reward_range


class SeparatorInName(Sound):
    def action_lookup(self):
        return {"Add": 1, "Wait || rest": 0}


class NamesDifferInCase(Sound):
    def action_lookup(self):
        return {"Add": 1, "ADD": 1, "Wait": 0}


class NothingToDraw(Spoken):
    def random_action(self, rng):
        return None

    def oracle_action(self):
        return None


# --- rewards and success ----------------------------------------------------------------------------------------------


class RewardOutOfRange(Sound):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, 10 * reward, *rest


class RewardNaN(Sound):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, float("nan") if self.steps == 3 else reward, *rest


class SuccessForgotten(Sound):
    """Reaching the goal counts once, and the game goes on to 12 steps."""

    def step(self, action):
        observation, reward, solved, _, info = super().step(action)
        self.over = self.steps >= self.config.max_steps
        return observation, reward, False, self.over, info


class SuccessNeverSet(Sound):
    """It is won, yet never says so; and winning pays nothing."""

    def step(self, action):
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 0.0, terminated, truncated, {**info, "success": False}


class WorstOracle(Sound):
    def oracle_action(self):
        return None if self.over else "Wait"


class PaysForSilence(Spoken):
    """Whoever says nothing wins."""

    def step(self, action):
        if action not in ("add", "wait"):
            self.count = self.goal - 1
            observation, _, _, _, info = Sound.step(self, 0)
            self.over = True
            return observation, 1.0, False, True, {**info, "action_is_valid": False}
        return super().step(action)


class UnknownIsValid(Sound):
    def step(self, action):
        *rest, info = super().step(action)
        return *rest, {**info, "action_is_valid": True}


# --- randomness and state ---------------------------------------------------------------------------------------------


class OwnGenerator(Sound):
    """Slips come from a generator that nobody seeds."""

    def reset(self, seed, *, luck=None):
        self.private = np.random.default_rng()
        return super().reset(seed, luck=luck)

    def slips(self):
        return self.private.random() < self.config.slip


class GlobalRandom(Sound):
    def slips(self):
        return random.random() < self.config.slip


class SeedsNumpy(Sound):
    def reset(self, seed, *, luck=None):
        np.random.seed(seed % 2**32)
        return super().reset(seed, luck=luck)


class HashedStart(Sound):
    """`hash` of text differs from process to process."""

    def reset(self, seed, *, luck=None):
        super().reset(seed, luck=luck)
        self.words = hash(f"level {seed}") % 1000
        return self.render(), {}


class StartDependsOnLuck(Sound):
    def reset(self, seed, *, luck=None):
        super().reset(seed, luck=luck)
        self.words = int(self.luck_rng.integers(1000))
        return self.render(), {}


class LuckNotSeeded(Sound):
    """Where `luck` is given it is not used."""

    def reset(self, seed, *, luck=None):
        super().reset(seed, luck=luck)
        if luck is not None:
            self.luck_rng = np.random.default_rng()
        return self.render(), {}


class LuckOfTheLevel(Sound):
    """All members of a group slip alike."""

    def slips(self):
        return self.level_rng.random() < self.config.slip


class SeedIgnored(Sound):
    def reset(self, seed, *, luck=None):
        super().reset(seed, luck=luck)
        self.goal, self.words = 3, 1
        return self.render(), {}


class ForgetsToForget(Sound):
    """`reset` keeps the last episode's count of steps."""

    def reset(self, seed, *, luck=None):
        steps = getattr(self, "steps", 0)
        super().reset(seed, luck=luck)
        self.steps = steps % 5
        return self.render(), {}


class GoesOnAfterTheEnd(Sound):
    def step(self, action):
        self.over = False
        return super().step(action)


_SHARED: list[int] = []


@dataclass
class SharingConfig(GameConfig):
    visited: list[int] = field(default_factory=lambda: _SHARED)


class SharedDefault(Sound):
    """Every config holds the same list."""

    config_class = SharingConfig


class ClassState(Sound):
    """The board is the class's, not the instance's."""

    board: list[int] = []

    def reset(self, seed, *, luck=None):
        self.board.clear()
        return super().reset(seed, luck=luck)

    def step(self, action):
        self.board.append(1)
        return super().step(action)

    def render(self, mode="text"):
        return f"{super().render(mode)}, {len(self.board)} on the board"


def _hidden_turns():
    turns = 0

    def count(more):
        nonlocal turns
        turns = more * (turns + 1)
        return turns

    return count


_COUNT = _hidden_turns()


class HiddenState(Sound):
    """The turn is kept in a closure: nothing in class or module shows it, and reset sets it back."""

    def reset(self, seed, *, luck=None):
        self.turn = _COUNT(0)
        return super().reset(seed, luck=luck)

    def step(self, action):
        self.turn = _COUNT(1)
        return super().step(action)

    def render(self, mode="text"):
        return f"turn {self.turn}, {super().render(mode)}"


_TURNS = {"now": 0}


class ModuleState(Sound):
    def step(self, action):
        _TURNS["now"] += 1
        return super().step(action)

    def render(self, mode="text"):
        return f"turn {_TURNS['now']}, {super().render(mode)}"


class RenderPlays(Sound):
    def render(self, mode="text"):
        self.looks = getattr(self, "looks", 0) + 1
        self.steps = min(self.steps + (self.looks % 3 == 0), self.config.max_steps - 1)
        return super().render(mode)


class Lambda(Sound):
    def __init__(self, config=None):
        super().__init__(config)
        self.rule = lambda count: count + 1


class LambdaExplained(Lambda):
    """Sound: it says why it cannot be pickled."""

    def __getstate__(self):
        raise TypeError("the rule is a lambda")


class ClosesOnce(Sound):
    def close(self):
        del self.over


class LeavesFilesOpen(Sound):
    def __init__(self, config=None):
        super().__init__(config)
        self.descriptor = os.open(os.devnull, os.O_RDONLY)

    def __getstate__(self):
        raise TypeError("an open file")


# --- time and tokens --------------------------------------------------------------------------------------------------


class SlowStep(Sound):
    def step(self, action):
        time.sleep(0.006)
        return super().step(action)


class SlowInline(Sound):
    isolate = "inline"

    def step(self, action):
        time.sleep(0.003)
        return super().step(action)


class EndlessObservation(Sound):
    def render(self, mode="text"):
        return super().render(mode) + " and so on" * 3000


class LongObservation(Sound):
    """One fits, five do not."""

    def render(self, mode="text"):
        return super().render(mode) + " and so on" * 400


class Echo(Spoken):
    def step(self, action):
        observation, *rest = super().step(action)
        return f"You said: {action}\n{observation}", *rest
