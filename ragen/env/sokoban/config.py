"""Settings of Sokoban."""

from __future__ import annotations

from dataclasses import dataclass, field

from ragen.env.config_checks import at_least, complete_symbols, one_of

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
    """How many moves back from the solved room the generator looks for a start. With `levels: ours` no start lies
    further from its solution; with `gym_sokoban` it bounds that package's reverse play, whose own limit is 300."""
    solvable_within: int | None = None
    """Most moves that the shortest solution of a level may take; null: any solvable level. Entries of envs.yaml set it
    to their `max_actions_per_traj` unless they give it."""
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
        self.symbols = complete_symbols(self.symbols, SYMBOLS)
        at_least(self, dim_x=4, dim_y=4, num_boxes=1, max_steps=1, search_depth=1, solvable_within=1)
        one_of(
            self,
            levels=("ours", "gym_sokoban"),
            observation_format=("grid", "grid_coord"),
            render_mode=("text", "rgb_array"),
        )
