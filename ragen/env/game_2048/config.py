"""Settings of 2048."""

from __future__ import annotations

from dataclasses import dataclass

from ragen.env.config_checks import at_least, one_of


@dataclass
class Game2048Config:
    size: int = 4
    """Rows and columns, 2 to 8."""
    target_tile: int = 2048
    """The tile that wins, a power of two. Each move adds 2.2 to the board on average, so a tile of n takes at least
    n / 2.2 moves: some 930 for 2048, 230 for 512."""
    four_probability: float = 0.1
    """Chance that a new tile is a 4 rather than a 2."""
    max_steps: int = 5000
    """Steps after which the environment truncates the episode."""
    render_mode: str = "text"
    """`text`, or `rgb_array`: the observation is a picture."""

    def __post_init__(self):
        at_least(self, size=2, target_tile=8, max_steps=1)
        one_of(self, render_mode=("text", "rgb_array"))
        if self.size > 8:
            raise ValueError(f"size is {self.size}; give at most 8")
        if self.target_tile & (self.target_tile - 1) or self.target_tile > 2**17:
            raise ValueError(f"target_tile is {self.target_tile}; give a power of two up to 131072")
        if not 0 <= self.four_probability <= 1:
            raise ValueError(f"four_probability is {self.four_probability!r}; give a chance from 0 to 1")
