"""Sudoku puzzles: solving by bit sets, and making puzzles that have exactly one solution.

A board is a list of size * size numbers by rows, 0 where nothing stands. A number n is the bit 1 << n in sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

#: Cells that the solver tries numbers in before it gives a position up. Every search is bounded by it.
SEARCH_LIMIT = 2000
#: Boards from which a puzzle is cut before the config is said to allow none.
_TRIES = 20


class Puzzle(NamedTuple):
    givens: tuple[int, ...]
    """The board at the start."""
    solution: tuple[int, ...]


class GaveUp(Exception):
    """The search limit was reached, so it is not known whether there is a solution."""


class Shape(NamedTuple):
    """What the rules say for a size, none of it depending on a board."""

    size: int
    units: tuple[tuple[int, ...], ...]
    """Rows, columns and boxes: the cells of each."""
    units_of: tuple[tuple[int, ...], ...]
    """For each cell, its row, column and box, by number in `units`."""
    peers: tuple[tuple[int, ...], ...]
    """For each cell, the others in its row, column and box."""


@lru_cache
def shape(size: int) -> Shape:
    box, every = round(size**0.5), range(size)
    rows = [tuple(row * size + column for column in every) for row in every]
    columns = [tuple(row * size + column for row in every) for column in every]
    corners = [(row, column) for row in range(0, size, box) for column in range(0, size, box)]
    boxes = [tuple((r + i) * size + c + j for i in range(box) for j in range(box)) for r, c in corners]
    units = (*rows, *columns, *boxes)
    units_of = tuple(tuple(u for u, unit in enumerate(units) if cell in unit) for cell in range(size * size))
    peers = tuple(tuple({c for u in units_of[cell] for c in units[u]} - {cell}) for cell in range(size * size))
    return Shape(size, units, units_of, peers)


def allowed(board: Sequence[int], cell: int, size: int) -> int:
    """The set of numbers that stand nowhere else in the row, column and box of `cell`."""
    taken = 0
    for peer in shape(size).peers[cell]:
        taken |= 1 << board[peer]
    return (1 << (size + 1)) - 2 & ~taken


def solve(board: Sequence[int], size: int, rng: np.random.Generator | None = None) -> tuple[int, ...] | None:
    """A solution of the board, or None where there is none. With `rng` it tries numbers in random order.

    Raises:
        GaveUp: none was found within the search limit.
    """
    options = [0] * (size * size)
    for cell, number in enumerate(board):
        options[cell] = allowed(board, cell, size) & (1 << number if number else -1)
    return _search(options, [cell for cell in range(size * size) if board[cell]], shape(size), rng, [SEARCH_LIMIT])


def _search(
    options: list[int], fixed: list[int], rules: Shape, rng: np.random.Generator | None, budget: list[int]
) -> tuple[int, ...] | None:
    """Depth-first search over the cell with the fewest options. `fixed`: cells whose one option is news to the rest."""
    if not _propagate(options, fixed, rules):
        return None
    open_cells = [cell for cell, option in enumerate(options) if option & (option - 1)]
    if not open_cells:
        return tuple(option.bit_length() - 1 for option in options)
    budget[0] -= 1
    if budget[0] < 0:
        raise GaveUp
    cell = min(open_cells, key=lambda c: options[c].bit_count())
    numbers = [number for number in range(1, rules.size + 1) if options[cell] >> number & 1]
    if rng is not None:
        rng.shuffle(numbers)
    for number in numbers:
        tried = options.copy()
        tried[cell] = 1 << number
        found = _search(tried, [cell], rules, rng, budget)
        if found is not None:
            return found
    return None


def _propagate(options: list[int], fixed: list[int], rules: Shape) -> bool:
    """Draw the conclusions of the fixed cells until there are no more; False on a contradiction. Changes `options`.

    A number fixed in a cell leaves its peers; a number with one cell left in a row, column or box belongs there.
    """
    fixed, touched = list(fixed), set(range(len(rules.units)))
    while fixed or touched:
        while fixed:
            cell = fixed.pop()
            bit = options[cell]
            for peer in rules.peers[cell]:
                option = options[peer]
                if option & bit:
                    option ^= bit
                    if not option:
                        return False
                    options[peer] = option
                    if not option & (option - 1):
                        fixed.append(peer)
                    touched.update(rules.units_of[peer])
        if touched:
            once = several = 0
            unit = rules.units[touched.pop()]
            for cell in unit:
                several |= once & options[cell]
                once |= options[cell]
            if once != (1 << (rules.size + 1)) - 2:
                return False
            single = once & ~several
            for cell in unit:
                bit = options[cell] & single
                if bit and options[cell] != bit:
                    if bit & (bit - 1):
                        return False  # two numbers that both fit nowhere else
                    options[cell] = bit
                    fixed.append(cell)
                    touched.update(rules.units_of[cell])
    return True


def is_unique(board: Sequence[int], solution: Sequence[int], cell: int, size: int) -> bool:
    """Whether `board`, which lacks `cell` but had one solution with it, still has that one only.

    False also where the search limit leaves it open.
    """
    number, rules = solution[cell], shape(size)
    others = allowed(board, cell, size) & ~(1 << number)
    if not others:
        return True
    for unit in rules.units_of[cell]:
        # The number fits nowhere else in the unit.
        if not any(not board[c] and c != cell and allowed(board, c, size) >> number & 1 for c in rules.units[unit]):
            return True
    options = [allowed(board, c, size) & (1 << n if n else -1) for c, n in enumerate(board)]
    options[cell] = others
    fixed = [c for c in range(size * size) if board[c] or not options[c] & (options[c] - 1)]
    try:
        return _search(options, fixed, rules, None, [SEARCH_LIMIT // 20]) is None
    except GaveUp:
        return False


def make_puzzle(size: int, givens: int, rng: np.random.Generator) -> Puzzle | None:
    """A puzzle of so many givens with exactly one solution; None where none was found."""
    for _ in range(_TRIES):
        solution = _full_board(size, rng)
        board = list(solution)
        left = size * size
        for cell in rng.permutation(size * size).tolist():
            if left == givens:
                break
            board[cell] = 0
            if is_unique(board, solution, cell, size):
                left -= 1
            else:
                board[cell] = solution[cell]
        if left == givens:
            return Puzzle(tuple(board), solution)
    return None


def _full_board(size: int, rng: np.random.Generator) -> tuple[int, ...]:
    """A random solved board."""
    while True:
        try:
            return solve([0] * (size * size), size, rng)
        except GaveUp:  # an unlucky start; the next one is fresh
            continue
