"""Settings of the TextArena adapter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ragen.env.config_checks import at_least


@dataclass
class TextArenaConfig:
    id: str = "GuessTheNumber-v0"
    """The registered game, such as `TowerOfHanoi-v0`; games for one player only."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `textarena.make`, such as `max_turns`."""
    success_score: float = 1.0
    """Least final reward of the game that counts as won."""
    reward_range: list[float] | None = None
    """Least and greatest final reward. null: unbounded; most games pay from 0 to 1 (the share that was solved)."""
    max_action_chars: int = 2000
    """Longer actions are invalid and never reach the game."""

    def __post_init__(self):
        at_least(self, max_action_chars=1)
        if not isinstance(self.id, str) or not self.id:
            raise ValueError(f"id is {self.id!r}; name a game of TextArena, such as 'GuessTheNumber-v0'")
        bounds = self.reward_range
        if bounds is not None and not (len(bounds) == 2 and bounds[0] <= bounds[1]):
            raise ValueError(f"reward_range is {bounds!r}; give [least, greatest]")
