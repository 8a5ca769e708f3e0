"""Sudoku: fill the board so that every row, column and box holds each number once. Every puzzle has one solution.

+1 for the solution's number, 0.5 for another that breaks no rule as things stand, -0.1 for an impossible placement, +10
when the board is solved. A number pays once in a cell, so that placing it to and fro earns nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np

from ragen.env.base import Env, level_stream
from ragen.env.drawing import Cell, draw_cells
from ragen.env.sudoku.config import SudokuConfig
from ragen.env.sudoku.puzzles import Puzzle, allowed, make_puzzle

_MAX_CHARACTERS = 100
_SENTENCE = re.compile(r"place ([0-9]{1,2}) (?:at|in|on) row ([0-9]{1,2}),? (?:and )?col(?:umn)? ([0-9]{1,2})\.?")
_TRIPLE = re.compile(r"\(?([0-9]{1,2}) ?, ?([0-9]{1,2}) ?, ?([0-9]{1,2})\)?")
_SIDE = 28  # pixels
_FILLS = ((255, 255, 255), (226, 234, 242))  # boxes alternate
_GIVEN, _PLACED = (20, 20, 20), (20, 90, 200)


class Sudoku(Env):
    config_class = SudokuConfig
    reward_range = (-0.1, 11.0)

    def __init__(self, config: SudokuConfig | None = None):
        super().__init__(config)
        self.render_mode = self.config.render_mode
        self._over = True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        """Start the puzzle of `seed`. Nothing is left to luck afterwards.

        Raises:
            ValueError: no puzzle with so few givens was found.
        """
        self.seed_streams(seed, luck)
        self.load_puzzle(_puzzle(self.config.size, self.config.number_of_givens, seed))
        return self._observation(), {}

    def load_puzzle(self, puzzle: Puzzle) -> None:
        """Start the episode of a given puzzle."""
        self.puzzle, self.board = puzzle, list(puzzle.givens)
        self._paid: set[tuple[int, int]] = set()
        self._steps_taken, self._over = 0, False

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("the Sudoku episode is over; call reset first")
        self._steps_taken += 1
        placement = self._placement(action)
        possible = placement is not None and self._is_possible(*placement)
        reward = self._place(*placement) if possible else -0.1
        solved = self.board == list(self.puzzle.solution)
        if solved:
            reward += 10.0
        truncated = not solved and self._steps_taken >= self.config.max_steps
        self._over = solved or truncated
        info = {"action_is_valid": possible, "action_is_effective": possible, "success": solved}
        return self._observation(), reward, solved, truncated, info

    def _placement(self, action: Any) -> tuple[int, int] | None:
        """Cell and number that the text names; None where it names none on this board."""
        if not isinstance(action, str) or len(action) > _MAX_CHARACTERS:
            return None
        text = " ".join(action.casefold().split())
        if match := _SENTENCE.fullmatch(text):
            number, row, column = map(int, match.groups())
        elif match := _TRIPLE.fullmatch(text):
            row, column, number = map(int, match.groups())
        else:
            return None
        size = self.config.size
        if not all(1 <= value <= size for value in (number, row, column)):
            return None
        return (row - 1) * size + column - 1, number

    def _is_possible(self, cell: int, number: int) -> bool:
        """Whether the cell is no given, the number is new there, and it breaks no rule."""
        if self.puzzle.givens[cell] or self.board[cell] == number:
            return False
        return bool(allowed(self.board, cell, self.config.size) >> number & 1)

    def _place(self, cell: int, number: int) -> float:
        self.board[cell] = number
        if (cell, number) in self._paid:
            return 0.0
        self._paid.add((cell, number))
        return 1.0 if number == self.puzzle.solution[cell] else 0.5

    # --- what is seen -----------------------------------------------------------------------------------------------

    def cell_names(self) -> list[list[str]]:
        """The board by rows: what stands in each cell, and which of the two shades its box has."""
        size, box = self.config.size, round(self.config.size**0.5)

        def name(row: int, column: int) -> str:
            cell = row * size + column
            number, shade = self.board[cell], (row // box + column // box) % 2
            kind = "given" if self.puzzle.givens[cell] else "placed" if number else "empty"
            return f"{kind} {number} {shade}"

        return [[name(row, column) for column in range(size)] for row in range(size)]

    def render(self, mode: str = "text") -> Any:
        if mode == "rgb_array":
            return draw_cells([[_look(name) for name in row] for row in self.cell_names()], _SIDE)
        if mode != "text":
            raise ValueError(f"sudoku cannot render {mode!r}; use 'text' or 'rgb_array'")
        size, box = self.config.size, round(self.config.size**0.5)
        digits = len(str(size))
        cells = [
            f"{number or '.':>{digits}}{'*' if given else ' '}"
            for number, given in zip(self.board, self.puzzle.givens, strict=True)
        ]

        def line(label: str, parts: list[str]) -> str:
            groups = [" ".join(parts[start : start + box]) for start in range(0, size, box)]
            return f"{label:<{4 + digits}} {' | '.join(groups)}".rstrip()

        rows = [line(f"row {row + 1}", cells[row * size : (row + 1) * size]) for row in range(size)]
        return "\n".join([line("col", [f"{column:>{digits}} " for column in range(1, size + 1)]), *rows])

    def _observation(self) -> str:
        return "<image>" if self.render_mode == "rgb_array" else self.render()

    def instruction(self) -> str:
        size, box = self.config.size, round(self.config.size**0.5)
        marks = (
            "An asterisk marks a given number, a dot an empty cell."
            if self.render_mode == "text"
            else "Given numbers are black, yours blue; boxes alternate in shade."
        )
        return (
            f"Sudoku: fill the {size}x{size} board so that each row, column and {box}x{box} box holds every number "
            f"from 1 to {size} once. Given numbers stay; you may replace your own. {marks} Rows count from the top, "
            "columns from the left, from 1.\n"
            "An action is written `place 4 at row 2 col 3`, or for short `2,3,4` (row, column, number).\n"
            "Reward: 1 for the right number, 0.5 for a wrong one that is not yet in its row, column or box, -0.1 for "
            "an impossible placement, 10 more when all is solved. A number pays once in a cell."
        )

    def oracle_action(self) -> str | None:
        """A placement that is right, where possible of a wrong number first, or one that makes way for it.

        None where neither is possible: numbers of the player's own can block each other for good.
        """
        if self._over:
            return None
        solution = self.puzzle.solution
        wrong = [cell for cell, number in enumerate(self.board) if number and number != solution[cell]]
        empty = [cell for cell, number in enumerate(self.board) if not number]
        placement = self._right_placement(wrong) or self._make_way(wrong) or self._right_placement(empty)
        return None if placement is None else self._text(*placement)

    def _right_placement(self, cells: list[int]) -> tuple[int, int] | None:
        """The first of these cells that can have its right number now, with that."""
        solution = self.puzzle.solution
        return next(((cell, solution[cell]) for cell in cells if self._is_possible(cell, solution[cell])), None)

    def _make_way(self, wrong: list[int]) -> tuple[int, int] | None:
        """A replacement of a wrong number after which another one can be put right."""
        for cell in wrong:
            stands = self.board[cell]
            for number in range(1, self.config.size + 1):
                if self._is_possible(cell, number):
                    self.board[cell] = number
                    opens = self._right_placement([other for other in wrong if other != cell])
                    self.board[cell] = stands
                    if opens is not None:
                        return cell, number
        return None

    def random_action(self, rng: np.random.Generator) -> str | None:
        """A placement that breaks no rule, in an empty cell if there is one for it."""
        size, placed, fresh = self.config.size, [], []
        for cell, given in enumerate(self.puzzle.givens):
            if not given:
                free = allowed(self.board, cell, size)
                numbers = [n for n in range(1, size + 1) if free >> n & 1 and n != self.board[cell]]
                (placed if self.board[cell] else fresh).extend((cell, number) for number in numbers)
        legal = fresh or placed
        return self._text(*legal[int(rng.integers(len(legal)))]) if legal else None

    def _text(self, cell: int, number: int) -> str:
        row, column = divmod(cell, self.config.size)
        return f"place {number} at row {row + 1} col {column + 1}"


@lru_cache(maxsize=256)
def _puzzle(size: int, givens: int, seed: int) -> Puzzle:
    """The puzzle of a seed. Kept, since every member of a group asks for it."""
    puzzle = make_puzzle(size, givens, level_stream(seed))
    if puzzle is None:
        raise ValueError(f"sudoku seed {seed}: no {size}x{size} puzzle of {givens} givens was found; raise givens")
    return puzzle


def _look(name: str) -> Cell:
    kind, number, shade = name.split()
    return Cell(_FILLS[int(shade)], "" if kind == "empty" else number, _GIVEN if kind == "given" else _PLACED)
