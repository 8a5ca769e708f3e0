"""What environments on the package `textworld` share: commands that are admissible now, and pickling by replay.

Only an admissible command ever reaches the game: its interpreters are not made for hostile text.
"""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from typing import Any

import numpy as np

from ragen.env.base import Env

#: No command is longer: what is longer is not even looked at.
MAX_COMMAND_CHARS = 200


def require(package: str) -> None:
    """Raise ModuleNotFoundError for a package that is not installed, without the seconds that its import takes."""
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


class TextGame(Env):
    """An episode of one game, which a subclass opens (`_open`) and describes (`_view`)."""

    def __init__(self, config: Any | None = None):
        super().__init__(config)
        self._game, self._guide, self._state, self._over = None, None, None, True
        self._played: list[str] = []
        self._feedback, self._text = "", ""

    @abstractmethod
    def _open(self, seed: int, with_plan: bool) -> Any:
        """The game of `seed`, loaded: a `textworld.Environment`; `with_plan`: its state holds `policy_commands`."""

    @abstractmethod
    def _view(self) -> str:
        """The page that shows the current state, commands left out."""

    @abstractmethod
    def _reward(self, before: Any, after: Any) -> float:
        """What the step between two states pays."""

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        """Start the game of `seed`. Nothing is left to luck.

        Raises:
            ValueError: the config allows no game.
        """
        self.seed_streams(seed, luck)
        self.close()
        self._seed, self._played, self._feedback, self._steps = seed, [], "", 0
        self._game = self._open(seed, with_plan=False)
        self._state, self._over = self._game.reset(), False
        self._begin()
        self._text = self._page()
        return self._text, {}

    def _begin(self) -> None:  # noqa: B027 (nothing to prepare is the usual case)
        """What a subclass reads off the first state."""

    def close(self) -> None:
        for game in (self._game, self._guide):
            if game is not None:
                game.close()
        self._game, self._guide, self._over = None, None, True

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError(f"the {type(self).__name__} episode is over; call reset first")
        command, before = self._command(action), self._state
        self._steps += 1
        reward, effective, won, lost = 0.0, False, False, False
        if command is not None:
            self._play(command)
            won, lost = bool(self._state.won), bool(self._state.lost)
            reward = self._reward(before, self._state)
            effective = set(before.facts) != set(self._state.facts)
        truncated = not won and not lost and self._steps >= self.config.max_steps
        self._over = won or lost or truncated
        self._text = self._page()
        info = {"action_is_valid": command is not None, "action_is_effective": effective, "success": won}
        return self._text, reward, won or lost, truncated, info

    def _play(self, command: str) -> None:
        self._state = self._game.step(command)[0]
        self._feedback = self._state.feedback.strip()
        self._played.append(command)
        if self._guide is not None:
            self._plan = self._guide.step(command)[0].policy_commands

    # --- commands ---------------------------------------------------------------------------------------------------

    def commands(self) -> list[str]:
        """What can be done now."""
        return list(self._state.admissible_commands)

    def _command(self, action: Any) -> str | None:
        """The admissible command that the text is, whatever its case and blanks."""
        if not isinstance(action, str) or len(action) > MAX_COMMAND_CHARS:
            return None
        wanted = " ".join(action.lower().split())
        return next((command for command in self.commands() if command.lower() == wanted), None)

    def render(self, mode: str = "text") -> str:
        if mode != "text":
            raise ValueError(f"{type(self).__name__} has no board to draw: mode {mode!r}; use 'text'")
        return self._text

    def _page(self) -> str:
        return self._view() if self._over else f"{self._view()}\nCommands: {', '.join(self.commands())}"

    def oracle_action(self) -> str | None:
        """The first command of a plan from here; None where there is none. A plan is kept up only once asked for."""
        if self._over:
            return None
        if self._guide is None:
            self._guide = self._open(self._seed, with_plan=True)
            self._plan = self._guide.reset().policy_commands
            for command in self._played:
                self._plan = self._guide.step(command)[0].policy_commands
        return self._plan[0] if self._plan else None

    def random_action(self, rng: np.random.Generator) -> str | None:
        commands = [] if self._over else self.commands()
        return commands[int(rng.integers(len(commands)))] if commands else None

    # --- pickling ---------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Without the game, which holds what no pickle can: a copy plays the same commands again."""
        return {**vars(self), "_game": None, "_guide": None, "_state": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if not self._over:
            self._game = self._open(self._seed, with_plan=False)
            self._state = self._game.reset()
            for command in self._played:
                self._state = self._game.step(command)[0]
