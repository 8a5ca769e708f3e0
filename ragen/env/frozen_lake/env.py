"""FrozenLake: walk over ice to the goal; a hole ends the episode, and slippery ice turns moves aside.

Moves, slips and rewards are those of Gymnasium's FrozenLake. Start, goal and holes are drawn from the seed; slips are
each episode's own luck.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ragen.env.base import Env, level_stream
from ragen.env.frozen_lake.config import FrozenLakeConfig

ACTIONS = {"Left": 1, "Down": 2, "Right": 3, "Up": 4}
#: (row, column) change of the actions 1 to 4. Neighbours in this circle are at right angles.
_CHANGES = ((0, -1), (1, 0), (0, 1), (-1, 0))
_TRIES = 1000
_CELL = 32  # pixels
_COLOURS = {"frozen": (222, 236, 247), "hole": (38, 70, 110), "goal": (92, 170, 92)}

Cell = tuple[int, int]


class FrozenLake(Env):
    config_class = FrozenLakeConfig
    reward_range = (0.0, 1.0)
    isolate = "inline"

    def __init__(self, config: FrozenLakeConfig | None = None):
        super().__init__(config)
        self.render_mode = self.config.render_mode
        self._over = True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        """Start on the lake of `seed`.

        Raises:
            ValueError: the config allows no lake whose goal can be reached.
        """
        self.seed_streams(seed, luck)
        self.load_lake(*_lake_of_seed(seed, self.config.size, self.config.p, self.config.solvable_within))
        return self._observation(), {}

    def load_lake(self, frozen: np.ndarray, start: Cell, goal: Cell) -> None:
        """Start the episode on a given lake: `frozen` is bool (size, size), False where there is a hole."""
        self.frozen, self.goal, self.player = frozen, goal, start
        self._steps_taken, self._over, self._policy = 0, False, None

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("the FrozenLake episode is over; call reset first")
        before = self.player
        valid = action in ACTIONS.values()
        if valid:
            draw = self.luck_rng.random()
            for chance, reached in self.outcomes(before, action):  # the last one also takes what rounding leaves
                self.player = reached
                if draw < chance:
                    break
                draw -= chance
        self._steps_taken += 1
        success = self.player == self.goal
        terminated = success or not self.frozen[self.player]
        truncated = not terminated and self._steps_taken >= self.config.max_steps
        self._over = terminated or truncated
        info = {
            "action_is_valid": valid,
            "action_is_effective": self.player != before,
            "success": success,
        }
        return self._observation(), float(success), bool(terminated), truncated, info

    def outcomes(self, cell: Cell, action: int) -> list[tuple[float, Cell]]:
        """Where `action` may lead from `cell`, with chances: as meant first, then its two neighbours if it can slip."""
        as_meant = self.config.chance_as_meant
        directions = [(as_meant, action - 1)]
        if as_meant < 1:
            directions += [((1 - as_meant) / 2, (action - 2) % 4), ((1 - as_meant) / 2, action % 4)]
        last = self.config.size - 1
        found = []
        for chance, direction in directions:
            row, column = cell[0] + _CHANGES[direction][0], cell[1] + _CHANGES[direction][1]
            found.append((chance, (min(max(row, 0), last), min(max(column, 0), last))))  # the shore stops
        return found

    # --- what is seen -----------------------------------------------------------------------------------------------

    def cell_names(self) -> list[list[str]]:
        """The lake by rows, each cell named by its key in `FrozenLakeConfig.symbols`."""

        def name(cell: Cell) -> str:
            if cell == self.goal:
                return "player_on_goal" if cell == self.player else "goal"
            if not self.frozen[cell]:
                return "player_in_hole" if cell == self.player else "hole"
            return "player" if cell == self.player else "frozen"

        return [[name((row, column)) for column in range(self.config.size)] for row in range(self.config.size)]

    def render(self, mode: str = "text") -> Any:
        if mode == "rgb_array":
            return self._picture()
        if mode != "text":
            raise ValueError(f"frozen_lake cannot render {mode!r}; use 'text' or 'rgb_array'")
        symbols = self.config.symbols
        grid = "\n".join("".join(symbols[name] for name in row) for row in self.cell_names())
        if self.config.observation_format == "grid":
            return grid
        holes = " ".join(f"({row},{column})" for row, column in np.argwhere(~self.frozen)) or "none"
        you, goal = ("({},{})".format(*cell) for cell in (self.player, self.goal))
        return f"{grid}\nYou: {you}. Goal: {goal}. Holes: {holes}."

    def _picture(self) -> np.ndarray:
        """uint8 (32 * size, 32 * size, 3): ice, holes and goal as coloured cells, the player a disc, red once lost."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (_CELL * self.config.size,) * 2, (160, 180, 200))
        draw = ImageDraw.Draw(image)
        for row, names in enumerate(self.cell_names()):
            for column, name in enumerate(names):
                left, top = column * _CELL, row * _CELL
                ground = {"player": "frozen", "player_in_hole": "hole", "player_on_goal": "goal"}.get(name, name)
                draw.rectangle((left + 1, top + 1, left + _CELL - 2, top + _CELL - 2), fill=_COLOURS[ground])
                if name.startswith("player"):
                    fill = (200, 40, 40) if ground == "hole" else (240, 150, 30)
                    draw.ellipse((left + 8, top + 8, left + _CELL - 9, top + _CELL - 9), fill=fill)
        return np.asarray(image)

    def _observation(self) -> str:
        return "<image>" if self.render_mode == "rgb_array" else self.render()

    def instruction(self) -> str:
        symbol = self.config.symbols
        parts = ["FrozenLake: walk to the goal without falling into a hole. The edge of the lake stops you."]
        if self.render_mode == "text":
            parts.append(
                f"{symbol['player']} you, {symbol['frozen']} ice, {symbol['hole']} hole, {symbol['goal']} goal, "
                f"{symbol['player_in_hole']} you in a hole (lost), {symbol['player_on_goal']} you on the goal (won)."
            )
            if self.config.observation_format == "grid_coord":
                parts.append("Coordinates are (row,column), counted from (0,0) at the top left.")
        as_meant = self.config.chance_as_meant
        if as_meant < 1:
            parts.append(
                f"The ice is slippery: a move goes as meant {as_meant:.0%} of the time, otherwise sideways, "
                "to its left or right equally often."
            )
        parts.append("Reward: 1 at the goal, else 0.")
        return "\n".join(parts)

    def action_lookup(self) -> Mapping[str, int]:
        return ACTIONS

    def oracle_action(self) -> str | None:
        """The move with the best chance of reaching the goal, sooner counting a little more (discount 0.95 a move)."""
        if self._over:
            return None
        if self._policy is None:
            self._policy = self._best_actions()
        names = {number: name for name, number in ACTIONS.items()}
        return names[int(self._policy[self.player])]

    def _best_actions(self) -> np.ndarray:
        """Value iteration over the slips: the best action of each cell, int (size, size)."""
        size = self.config.size
        chances = np.zeros((len(ACTIONS), size * size, size * size))  # action, from, to
        for row, column in np.argwhere(self.frozen):
            for action in ACTIONS.values():
                for chance, reached in self.outcomes((row, column), action):
                    chances[action - 1, row * size + column, reached[0] * size + reached[1]] += chance
        goal = self.goal[0] * size + self.goal[1]
        values, change = np.zeros(size * size), 1.0
        values[goal] = 1.0
        while change > 1e-9:  # shrinks by 0.95 each time
            updated = 0.95 * (chances @ values).max(axis=0)
            updated[goal] = 1.0
            change, values = np.abs(updated - values).max(), updated
        return 1 + (chances @ values).argmax(axis=0).reshape(size, size)


@lru_cache(maxsize=512)
def _lake_of_seed(seed: int, size: int, p: float, solvable_within: int | None) -> tuple[np.ndarray, Cell, Cell]:
    """What `load_lake` takes, made once for all members of a group; the array cannot be written to."""
    rng = level_stream(seed)
    for _ in range(_TRIES):
        frozen = rng.random((size, size)) < p
        start, goal = (divmod(int(n), size) for n in rng.choice(size * size, 2, replace=False))
        frozen[start] = frozen[goal] = True
        distance = _distance(frozen, start, goal)
        if distance is not None and distance <= (solvable_within or distance):
            frozen.setflags(write=False)
            return frozen, start, goal
    raise ValueError(
        f"frozen_lake seed {seed}: no lake of size {size} and p {p} with its goal within {solvable_within} moves in "
        f"{_TRIES} tries; use a smaller size, or a higher p or solvable_within"
    )


def _distance(frozen: np.ndarray, start: Cell, goal: Cell) -> int | None:
    """Moves along the shortest way over ice; None where there is none."""
    size, reached, frontier, moves = len(frozen), {start}, [start], 0
    while frontier:
        if goal in reached:
            return moves
        moves += 1
        around = {(row + dr, column + dc) for row, column in frontier for dr, dc in _CHANGES}
        frontier = [(r, c) for r, c in around - reached if 0 <= r < size and 0 <= c < size and frozen[r, c]]
        reached.update(frontier)
    return None
