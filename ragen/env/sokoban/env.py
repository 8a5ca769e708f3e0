"""Sokoban: push every box onto a target. Rules, rewards and action numbers are those of the package gym-sokoban.

-0.1 a step, +1 for a box pushed onto a target, -1 for one pushed off, +10 when all are on targets, which ends the
episode. The board is kept as bit sets (`solver.py`); pictures use gym-sokoban's tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ragen.env.base import Env
from ragen.env.sokoban.config import SokobanConfig
from ragen.env.sokoban.gym_levels import package_folder
from ragen.env.sokoban.levels import Level, level_of_seed
from ragen.env.sokoban.solver import bits, shortest_solution, steps_of

ACTIONS = {"Up": 1, "Down": 2, "Left": 3, "Right": 4}
TILE_SIZE = 16  # pixels


class Sokoban(Env):
    config_class = SokobanConfig
    reward_range = (-1.1, 10.9)
    isolate = "inline"

    def __init__(self, config: SokobanConfig | None = None):
        super().__init__(config)
        self.render_mode = self.config.render_mode
        self._over = True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        """Start the level of `seed`. Nothing is left to luck afterwards.

        Raises:
            ValueError: the config allows no level.
        """
        self.seed_streams(seed, luck)
        self.load_level(level_of_seed(self.config, seed))
        return self._observation(), {}

    def load_level(self, level: Level) -> None:
        """Start the episode of a given level, as `reset` does with that of a seed."""
        self.level = level
        self.player, self.boxes = level.player, level.boxes
        self._steps_taken, self._plan, self._over = 0, None, False

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("the Sokoban episode is over; call reset first")
        before, on_target = (self.player, self.boxes), self._boxes_on_target()
        direction = action in ACTIONS.values()
        if direction:
            self._push_or_move(steps_of(self.level.width)[action - 1])
        self._steps_taken += 1

        reward = -0.1
        reward += self._boxes_on_target() - on_target  # one step moves one box at most
        solved = self.boxes == self.level.targets
        if solved:
            reward += 10
        truncated = not solved and self._steps_taken >= self.config.max_steps
        self._over = solved or truncated
        effective = before != (self.player, self.boxes)
        if effective:
            # A step along the planned solution leaves the rest of it in force.
            self._plan = self._plan[1:] if self._plan and self._plan[0] == action else None
        info = {
            "action_is_valid": direction or (action == 0 and self.config.stand_action),
            "action_is_effective": effective,
            "success": solved,
        }
        return self._observation(), reward, solved, truncated, info

    def _push_or_move(self, step: int) -> None:
        ahead, beyond = self.player + step, self.player + 2 * step
        if not self.level.floor >> ahead & 1:
            return
        if self.boxes >> ahead & 1:
            if not self.level.floor >> beyond & 1 or self.boxes >> beyond & 1:
                return
            self.boxes ^= (1 << ahead) | (1 << beyond)
        self.player = ahead

    def _boxes_on_target(self) -> int:
        return (self.boxes & self.level.targets).bit_count()

    # --- what is seen -----------------------------------------------------------------------------------------------

    def cell_names(self) -> list[list[str]]:
        """The board by rows, each cell named by its key in `SokobanConfig.symbols`."""
        floor, targets, boxes = self.level.floor, self.level.targets, self.boxes

        def name(cell: int) -> str:
            if not floor >> cell & 1:
                return "wall"
            target = targets >> cell & 1
            if cell == self.player:
                return "player_on_target" if target else "player"
            if boxes >> cell & 1:
                return "box_on_target" if target else "box"
            return "target" if target else "floor"

        width = self.level.width
        return [[name(row * width + column) for column in range(width)] for row in range(self.config.dim_x)]

    def render(self, mode: str = "text") -> Any:
        if mode == "rgb_array":
            tiles = _tiles()
            return np.block([[[tiles[name]] for name in row] for row in self.cell_names()])
        if mode != "text":
            raise ValueError(f"sokoban cannot render {mode!r}; use 'text' or 'rgb_array'")
        symbols = self.config.symbols
        grid = "\n".join("".join(symbols[name] for name in row) for row in self.cell_names())
        if self.config.observation_format == "grid":
            return grid
        targets, boxes = self.level.targets, self.boxes
        return (
            f"{grid}\nYou: {self._coordinates(1 << self.player)}. Boxes: {self._coordinates(boxes)}. "
            f"Targets: {self._coordinates(targets)}."
        )

    def _coordinates(self, cells: int) -> str:
        return " ".join("({},{})".format(*divmod(cell, self.level.width)) for cell in bits(cells))

    def _observation(self) -> str:
        return "<image>" if self.render_mode == "rgb_array" else self.render()

    def instruction(self) -> str:
        symbol = self.config.symbols
        parts = [
            "Sokoban: push every box onto a target. Walk into a box to push it one cell; the cell behind it must be "
            "free of walls and boxes. Boxes cannot be pulled."
        ]
        if self.render_mode == "text":
            parts.append(
                f"{symbol['wall']} wall, {symbol['floor']} floor, {symbol['target']} target, {symbol['box']} box, "
                f"{symbol['box_on_target']} box on target, {symbol['player']} you, "
                f"{symbol['player_on_target']} you on target."
            )
            if self.config.observation_format == "grid_coord":
                parts.append("Coordinates are (row,column), counted from (0,0) at the top left.")
        parts.append(
            "Reward: -0.1 per move, +1 for a box onto a target, -1 for a box off one, +10 when all are on targets."
        )
        return "\n".join(parts)

    def action_lookup(self) -> Mapping[str, int]:
        return {"Stand": 0, **ACTIONS} if self.config.stand_action else ACTIONS

    def oracle_action(self) -> str | None:
        """The first move of a shortest solution; None where none is left (or none within 300,000 positions)."""
        if self._over:
            return None
        if self._plan is None:
            self._plan = shortest_solution(
                self.level.floor, self.level.targets, self.player, self.boxes, self.level.width
            ) or []  # fmt: skip
        names = {number: name for name, number in ACTIONS.items()}
        return names[self._plan[0]] if self._plan else None


@lru_cache(maxsize=1)
def _tiles() -> dict[str, np.ndarray]:
    """Cell name → uint8 (16, 16, 3)."""
    from PIL import Image

    files = {"target": "box_target"}
    folder = package_folder() / "envs" / "surface"
    names = ("wall", "floor", "target", "box_on_target", "box", "player", "player_on_target")
    return {name: np.asarray(Image.open(folder / f"{files.get(name, name)}.png").convert("RGB")) for name in names}
