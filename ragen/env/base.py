"""The whole environment contract, on one screen.

An environment is one folder, `ragen/env/<env_type>/`, with `env.py` (one subclass of `Env`) and
`config.py` (one dataclass). Nothing is registered by hand: `env_type` in `config/envs.yaml` is the
folder's name. `ragen/env/registry.py` finds, builds and adapts; this file imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np


def level_stream(seed: int) -> np.random.Generator:
    """A new generator that draws what `level_rng` draws: for levels made once per seed, for a whole group."""
    return np.random.default_rng(np.random.SeedSequence([seed]))


class Env(ABC):
    """One episode at a time of a turn-based task that is read and played as text.

    Two random streams, never a global one:

    * `self.level_rng` is seeded by `reset(seed)`: it decides the *start state*. Every member of a group
      gets the same `seed`, hence the same start.
    * `self.luck_rng` is seeded by `reset(seed, luck=...)`: slips, payouts, draws. Every member gets its
      own `luck`, hence its own luck. Without `luck` it is derived from `seed` alone.
    """

    #: The dataclass of `config.py`; `env_config` in `config/envs.yaml` overrides its fields.
    config_class: ClassVar[type]
    #: Least and greatest reward that one `step` can pay.
    reward_range: ClassVar[tuple[float, float]] = (-float("inf"), float("inf"))
    #: Where `step` runs unless envs.yaml says otherwise: `inline` promises that it never blocks.
    isolate: ClassVar[str] = "process"
    #: `rgb_array`: the observation is a picture; the text that `reset` and `step` return is then "<image>".
    render_mode: str = "text"

    def __init__(self, config: Any | None = None):
        self.config = config if config is not None else self.config_class()

    def seed_streams(self, seed: int, luck: int | None = None) -> None:
        """Start both random streams. Call it first in `reset`."""
        self.level_rng = level_stream(seed)
        self.luck_rng = np.random.default_rng(np.random.SeedSequence([seed, 1] if luck is None else [seed, 2, luck]))

    @abstractmethod
    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        """Start the episode of `seed`. Returns (observation, info)."""

    @abstractmethod
    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Apply one action: a value of `action_lookup()`, or the action's text where that is None.

        Returns (observation, reward, terminated, truncated, info). `terminated`: the task itself ended
        (won or lost). `truncated`: a limit of the environment ended it. `info` holds
        `action_is_valid` (the action exists here), `action_is_effective` (it changed the state) and
        `success` (the task is solved), all bool.
        """

    @abstractmethod
    def render(self, mode: str = "text") -> Any:
        """The current observation: `text` → str; `rgb_array` → uint8 (H, W, 3), where there is a board."""

    def close(self) -> None:  # noqa: B027 (nothing to free is the usual case)
        """Free what the environment holds. Safe to call twice."""

    # --- what the prompt says -------------------------------------------------------------------

    @abstractmethod
    def instruction(self) -> str:
        """The task and its legend *as configured*: goal, symbols, rewards. Not the reply format."""

    def action_lookup(self) -> Mapping[str, Any] | None:
        """Action names → values given to `step`, matched case-insensitively; None: any text is an action."""
        return None

    # --- optional ---------------------------------------------------------------------------------

    def tools(self) -> list[dict[str, Any]] | None:
        """Functions that the model may call, as `ragen.env.tools.tool` describes them; None: there are none.

        With tools `action_lookup()` is None, and `step` receives a call as JSON text: `ragen.env.tools.read_call`.
        """
        return None

    def oracle_action(self) -> str | None:
        """The name of a best action from the current state, or None where no oracle exists or it is lost."""
        return None

    def random_action(self, rng: np.random.Generator) -> str | None:
        """An action that is possible now, as text, drawn with `rng`; None where none can be drawn.

        The default draws a name of `action_lookup()`. An environment whose actions are free text overrides it with a
        plausible legal action: it is the floor that the checker and an evaluation compare with.
        """
        names = list(self.action_lookup() or ())
        return names[int(rng.integers(len(names)))] if names else None
