"""The 2x2 cube: turn its faces until each shows one colour. +1 when solved, else 0.

A 2x2 cube has no centres, so it is solved however it is held. Nothing is left to luck after the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen.env.base import Env
from ragen.env.drawing import Cell, draw_cells
from ragen.env.rubikscube.config import RubiksCubeConfig
from ragen.env.rubikscube.cube import FACES, SOLVED, TURNS, best_turn, is_solved, turned

#: Name → value given to `step`.
ACTIONS = {name: number for number, name in enumerate(TURNS, start=1)}
_NAMES = {number: name for name, number in ACTIONS.items()}
#: Row and column of each face's upper left sticker in the net.
_CORNERS = {"U": (0, 2), "L": (2, 0), "F": (2, 2), "R": (2, 4), "B": (2, 6), "D": (4, 2)}
_SIDE = 32  # pixels
_FILLS = {
    " ": (60, 60, 60),
    "W": (250, 250, 250),
    "O": (255, 135, 20),
    "G": (30, 160, 70),
    "R": (200, 30, 40),
    "B": (30, 80, 200),
    "Y": (250, 220, 40),
}


class RubiksCube(Env):
    config_class = RubiksCubeConfig
    reward_range = (0.0, 1.0)
    isolate = "inline"

    def __init__(self, config: RubiksCubeConfig | None = None):
        super().__init__(config)
        self.render_mode = self.config.render_mode
        self._over = True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        """Scramble a solved cube by random turns, again if that leaves it solved."""
        self.seed_streams(seed, luck)
        cube = SOLVED
        while is_solved(cube):
            cube = SOLVED
            for turn in self.level_rng.integers(1, len(ACTIONS) + 1, self.config.scramble_depth).tolist():
                cube = turned(cube, TURNS[_NAMES[turn]])
        self.load_cube(cube)
        return self._observation(), {}

    def load_cube(self, cube: str) -> None:
        """Start the episode of a given cube: its 24 colours as `cube.py` orders them."""
        self.cube, self._steps_taken, self._over = cube, 0, False

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("the cube's episode is over; call reset first")
        self._steps_taken += 1
        valid = action in ACTIONS.values()
        if valid:
            self.cube = turned(self.cube, TURNS[_NAMES[action]])
        success = is_solved(self.cube)
        truncated = not success and self._steps_taken >= self.config.max_steps
        self._over = success or truncated
        info = {"action_is_valid": valid, "action_is_effective": valid, "success": success}
        return self._observation(), float(success), success, truncated, info

    # --- what is seen -----------------------------------------------------------------------------------------------

    def cell_names(self) -> list[list[str]]:
        """The net by rows: the letter of each sticker's colour, a space where the net has none."""
        net = [[" "] * 8 for _ in range(6)]
        for number, face in enumerate(FACES):
            top, left = _CORNERS[face]
            for place in range(4):
                net[top + place // 2][left + place % 2] = self.cube[4 * number + place]
        return net

    def render(self, mode: str = "text") -> Any:
        if mode == "rgb_array":
            net = [[Cell(_FILLS[name]) for name in row] for row in self.cell_names()]
            return draw_cells(net, _SIDE, grid=_FILLS[" "])
        if mode != "text":
            raise ValueError(f"rubikscube cannot render {mode!r}; use 'text' or 'rgb_array'")
        return "\n".join(" ".join(row).rstrip() for row in self.cell_names())

    def _observation(self) -> str:
        return "<image>" if self.render_mode == "rgb_array" else self.render()

    def instruction(self) -> str:
        colours = "W white, O orange, G green, R red, B blue, Y yellow. " if self.render_mode == "text" else ""
        return (
            "A 2x2 Rubik's cube, shown as a net: the top face U; below it, from left to right, the left face L, front "
            f"F, right R and back B; below F the bottom face D. {colours}Turn faces until each shows a single colour.\n"
            "U, D, L, R, F, B turn that face by 90 degrees clockwise, as seen facing it; U', D', L', R', F', B' "
            "counterclockwise.\nReward: 1 when the cube is solved, else 0."
        )

    def action_lookup(self) -> Mapping[str, int]:
        return ACTIONS

    def oracle_action(self) -> str | None:
        """The first turn of a shortest solution."""
        return None if self._over else best_turn(self.cube)
