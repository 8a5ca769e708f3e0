"""2048: push all tiles one way; equal tiles that meet merge. Won with the target tile, lost when no move is left.

A move pays 0.1 * log2(sum of the tiles that it made by merging + 1); one that changes nothing costs 0.1. The seed
decides the first two tiles, each episode's own luck the later ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ragen.env.base import Env
from ragen.env.drawing import Cell, draw_cells
from ragen.env.game_2048.board import ACTIONS, Board, best_move, empty_cells, move, moves, with_tile
from ragen.env.game_2048.config import Game2048Config

_SIDE = 48  # pixels
_EMPTY = (205, 193, 180)


class Game2048(Env):
    config_class = Game2048Config
    isolate = "inline"

    def __init__(self, config: Game2048Config | None = None):
        super().__init__(config)
        self.render_mode = self.config.render_mode
        # No move can make more than half as many tiles as there are cells, none above the target.
        most = self.config.size**2 // 2 * self.config.target_tile
        self.reward_range = (-0.1, _reward(most))
        self._over = True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        """Start with the two tiles of `seed`; later ones come from `luck`."""
        self.seed_streams(seed, luck)
        board = ((0,) * self.config.size,) * self.config.size
        for _ in range(2):
            board = self._new_tile(board, self.level_rng)
        self.load_board(board)
        return self._observation(), {}

    def load_board(self, board: Board) -> None:
        """Start the episode from a given board: rows of tiles, 0 where empty."""
        self.board, self._steps_taken = board, 0
        self._over = not moves(board)

    def _new_tile(self, board: Board, rng: np.random.Generator) -> Board:
        cells = empty_cells(board)
        cell = cells[int(rng.integers(len(cells)))]
        return with_tile(board, cell, 4 if rng.random() < self.config.four_probability else 2)

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("the 2048 episode is over; call reset first")
        self._steps_taken += 1
        valid = action in ACTIONS.values()
        after, gained = move(self.board, action) if valid else (self.board, 0)
        effective = after != self.board
        if effective:
            self.board = self._new_tile(after, self.luck_rng)
        success = max(map(max, self.board)) >= self.config.target_tile
        terminated = success or (effective and not moves(self.board))
        truncated = not terminated and self._steps_taken >= self.config.max_steps
        self._over = terminated or truncated
        info = {"action_is_valid": valid, "action_is_effective": effective, "success": success}
        return self._observation(), _reward(gained) if effective else -0.1, terminated, truncated, info

    # --- what is seen -----------------------------------------------------------------------------------------------

    def cell_names(self) -> list[list[str]]:
        """The board by rows: each cell's tile, `0` where it is empty."""
        return [[str(tile) for tile in row] for row in self.board]

    def render(self, mode: str = "text") -> Any:
        if mode == "rgb_array":
            return draw_cells([[_look(tile) for tile in row] for row in self.board], _SIDE, grid=(187, 173, 160))
        if mode != "text":
            raise ValueError(f"game_2048 cannot render {mode!r}; use 'text' or 'rgb_array'")
        texts = [[str(tile or ".") for tile in row] for row in self.board]
        width = max(len(text) for row in texts for text in row)
        return "\n".join(" ".join(text.rjust(width) for text in row) for row in texts)

    def _observation(self) -> str:
        return "<image>" if self.render_mode == "rgb_array" else self.render()

    def instruction(self) -> str:
        config = self.config
        empty = "A dot is an empty cell. " if self.render_mode == "text" else ""
        chance = config.four_probability
        new = "a 2" if chance == 0 else "a 4" if chance == 1 else f"a 2, or a 4 with a chance of {chance:.0%}"
        return (
            f"2048 on a {config.size}x{config.size} board. {empty}A move pushes all tiles as far as they go; two equal "
            f"tiles that meet merge into one of twice the number. Then a new tile appears in an empty cell: {new}. The "
            f"game is won with a tile of {config.target_tile}, and lost when no move is possible.\n"
            "Reward of a move: 0.1 * log2(s + 1), where s is the sum of the tiles made by merging; -0.1 if none moves."
        )

    def action_lookup(self) -> Mapping[str, int]:
        return ACTIONS

    def oracle_action(self) -> str | None:
        """The move with the best outlook two moves ahead: strong play, though no proof."""
        action = None if self._over else best_move(self.board)
        return next((name for name, number in ACTIONS.items() if number == action), None)

    def random_action(self, rng: np.random.Generator) -> str | None:
        """A move that changes the board."""
        possible = moves(self.board)
        names = [name for name, number in ACTIONS.items() if number in possible]
        return names[int(rng.integers(len(names)))] if names else None


def _reward(gained: int) -> float:
    return 0.1 * math.log2(gained + 1)


def _look(tile: int) -> Cell:
    if not tile:
        return Cell(_EMPTY)
    power = tile.bit_length() - 1
    fill = (238, max(40, 235 - 17 * power), max(30, 220 - 22 * power))
    return Cell(fill, str(tile), (60, 50, 40) if power < 3 else (255, 255, 255))
