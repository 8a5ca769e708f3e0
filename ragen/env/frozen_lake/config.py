"""Settings of FrozenLake."""

from __future__ import annotations

from dataclasses import dataclass, field

from ragen.env.config_checks import at_least, complete_symbols, one_of

SYMBOLS = {
    "player": "P",
    "frozen": "_",
    "hole": "O",
    "goal": "G",
    "player_in_hole": "X",
    "player_on_goal": "√",
}


@dataclass
class FrozenLakeConfig:
    size: int = 4
    """Rows and columns of the lake."""
    p: float = 0.8
    """Chance that a cell is frozen rather than a hole; start and goal always are."""
    is_slippery: bool = True
    """False: every move goes where it was meant to."""
    success_rate: float | None = None
    """On slippery ice, the chance that a move goes where it was meant to; what remains is split between the two
    directions at right angles to it. null: 1/3, Gymnasium's rule. RAGEN-2 used 0.8."""
    max_steps: int = 100
    """Steps after which the environment truncates the episode."""
    solvable_within: int | None = None
    """Most moves from start to goal along the shortest way, slips apart; null: any reachable goal. Entries of envs.yaml
    set it to their `max_actions_per_traj` unless they give it."""
    observation_format: str = "grid"
    """`grid`, or `grid_coord`: the grid and a line of (row, column) coordinates."""
    render_mode: str = "text"
    """`text`, or `rgb_array`: the observation is a picture."""
    symbols: dict[str, str] = field(default_factory=dict)
    """Replaces symbols of the grid, by name: player, frozen, hole, goal, player_in_hole, player_on_goal."""

    def __post_init__(self):
        self.symbols = complete_symbols(self.symbols, SYMBOLS)
        at_least(self, size=2, max_steps=1, solvable_within=1)
        one_of(self, observation_format=("grid", "grid_coord"), render_mode=("text", "rgb_array"))
        if not 0 < self.p <= 1:
            raise ValueError(f"p is {self.p!r}; give a chance above 0, up to 1")
        if self.success_rate is not None and not 0 <= self.success_rate <= 1:
            raise ValueError(f"success_rate is {self.success_rate!r}; give a chance from 0 to 1, or null for 1/3")

    @property
    def chance_as_meant(self) -> float:
        """Chance that a move goes where it was meant to."""
        if not self.is_slippery:
            return 1.0
        return 1 / 3 if self.success_rate is None else self.success_rate
