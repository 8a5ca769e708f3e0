"""Settings of Sokoban."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SYMBOLS = {
    "wall": "#",
    "floor": "_",
    "target": "O",
    "box_on_target": "√",
    "box": "X",
    "player": "P",
    "player_on_target": "S",
}


@dataclass
class SokobanConfig:
    dim_x: int = 6
    """Rows, the outer walls included."""
    dim_y: int = 6
    """Columns, the outer walls included."""
    num_boxes: int = 3
    max_steps: int = 100
    """Steps after which the environment truncates the episode."""
    search_depth: int = 300
    """How many moves back from the solved room the generator looks for a start. With `levels: ours` no start lies further
    from its solution; with `gym_sokoban` it bounds that package's reverse play."""
    solvable_within: int | None = None
    """Most moves that the shortest solution of a level may take; null: any solvable level. Entries of envs.yaml set it to
    their `max_actions_per_traj` unless they give a value."""
    levels: str = "ours"
    """`ours`, or `gym_sokoban`: the original generator of that package, for comparison with published figures."""
    observation_format: str = "grid"
    """`grid`, or `grid_coord`: the grid and a line of (row, column) coordinates."""
    render_mode: str = "text"
    """`text`, or `rgb_array`: the observation is a picture."""
    symbols: dict[str, str] = field(default_factory=dict)
    """Replaces symbols of the grid, by name: wall, floor, target, box_on_target, box, player, player_on_target."""
    stand_action: bool = False
    """Adds the action Stand (0): a step that changes nothing."""

    def __post_init__(self):
        unknown = sorted(set(self.symbols) - set(SYMBOLS))
        if unknown:
            raise ValueError(f"symbols names {', '.join(unknown)}; known: {', '.join(SYMBOLS)}")
        self.symbols = {**SYMBOLS, **self.symbols}
        if len(set(self.symbols.values())) < len(SYMBOLS) or any(len(s) != 1 for s in self.symbols.values()):
            raise ValueError(f"symbols must be {len(SYMBOLS)} different single characters, got {self.symbols}")
        _at_least(self, "dim_x", 4), _at_least(self, "dim_y", 4), _at_least(self, "num_boxes", 1)
        _at_least(self, "max_steps", 1), _at_least(self, "search_depth", 1)
        if self.solvable_within is not None:
            _at_least(self, "solvable_within", 1)
        _one_of(self, "levels", ("ours", "gym_sokoban"))
        _one_of(self, "observation_format", ("grid", "grid_coord"))
        _one_of(self, "render_mode", ("text", "rgb_array"))


def _at_least(config: Any, key: str, least: int) -> None:
    if type(getattr(config, key)) is not int or getattr(config, key) < least:
        raise ValueError(f"{key} is {getattr(config, key)!r}; give a whole number of at least {least}")


def _one_of(config: Any, key: str, choices: tuple[str, ...]) -> None:
    if getattr(config, key) not in choices:
        raise ValueError(f"{key} is {getattr(config, key)!r}; choose one of {', '.join(choices)}")
