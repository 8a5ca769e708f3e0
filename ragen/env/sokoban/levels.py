"""Sokoban levels, each a pure function of its random stream or seed, and each solvable within the budget asked for.

Ours: wall segments are put into an empty room while its floor stays in one piece, targets are drawn, and play goes
backwards from the solved room to *every* position whose shortest solution has 1, 2, 3 … moves. The start is drawn from
those positions, so the length of its solution is known without solving it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ragen.env.base import level_stream
from ragen.env.sokoban import gym_levels
from ragen.env.sokoban.config import SokobanConfig
from ragen.env.sokoban.solver import bits, positions_by_length, shortest_solution, steps_of

#: Most of the inner cells that may become walls; the share of each level is uniform between 0 and this.
MAX_WALL_SHARE = 0.55
#: A solution of n + 1 moves is drawn this much as often as one of n: many short levels, some long ones.
LENGTH_DECAY = 0.96
#: Where the search backwards stops in big rooms with many boxes; it keeps the lengths that it has completed.
MAX_POSITIONS = 20_000
_TRIES = 200


class Level(NamedTuple):
    """A start position on a board of `width` columns; `floor`, `targets` and `boxes` are bit sets (`solver.py`)."""

    floor: int
    targets: int
    player: int
    boxes: int
    width: int


#: What of a config decides on the level of a seed.
_LEVEL_FIELDS = ("dim_x", "dim_y", "num_boxes", "search_depth", "solvable_within", "levels")


def level_of_seed(config: SokobanConfig, seed: int) -> Level:
    """The level of `seed`, made once for all members of its group. Raises like `make_level`."""
    return _level_of_seed(seed, *(getattr(config, name) for name in _LEVEL_FIELDS))


@lru_cache(maxsize=512)
def _level_of_seed(seed: int, *limits: Any) -> Level:
    return make_level(SokobanConfig(**dict(zip(_LEVEL_FIELDS, limits, strict=True))), seed, level_stream(seed))


def make_level(config: SokobanConfig, seed: int, rng: np.random.Generator) -> Level:
    """The level of `seed`; `rng` is the stream that starts from it.

    Raises:
        ValueError: no level within the limits of `config` was found in 200 tries.
    """
    for attempt in range(_TRIES):
        if config.levels == "ours":
            level = _ours(config, rng)
        else:
            # The first try equals the original under this seed; the others follow from it.
            level = _original(config, seed % 2**32 if attempt == 0 else int(rng.integers(2**32)))
        if level is not None:
            return level
    raise ValueError(
        f"sokoban seed {seed}: no level with dim_x {config.dim_x}, dim_y {config.dim_y}, num_boxes {config.num_boxes}, "
        f"search_depth {config.search_depth} and solvable_within {config.solvable_within} in {_TRIES} tries; "
        "use a larger room, fewer boxes, or a higher search_depth and solvable_within"
    )


def _ours(config: SokobanConfig, rng: np.random.Generator) -> Level | None:
    height, width = config.dim_x, config.dim_y
    floor = _carve(height, width, rng)
    cells = list(bits(floor))
    if len(cells) < 2 * config.num_boxes + 1:
        return None
    targets = sum(1 << int(cell) for cell in rng.choice(cells, config.num_boxes, replace=False))
    longest = min(config.search_depth, config.solvable_within or config.search_depth)
    layers = positions_by_length(floor, targets, width, longest, MAX_POSITIONS)
    # Starts with a box on a target already would give part of the reward away.
    starts = [[(player, boxes) for player, boxes in layer if not boxes & targets] for layer in layers[1:]]
    weights = np.array([bool(layer) * LENGTH_DECAY**n for n, layer in enumerate(starts)])
    if not weights.any():
        return None
    drawn = starts[rng.choice(len(starts), p=weights / weights.sum())]
    player, boxes = drawn[rng.integers(len(drawn))]
    return Level(floor, targets, player, boxes, width)


def _carve(height: int, width: int, rng: np.random.Generator) -> int:
    """Floor in one piece: the inner cells, less straight wall segments of one to three cells."""
    inner = [row * width + column for row in range(1, height - 1) for column in range(1, width - 1)]
    floor = sum(1 << cell for cell in inner)
    wanted = int(len(inner) * rng.uniform(0, MAX_WALL_SHARE))
    steps = steps_of(width)
    for _ in range(2 * len(inner)):
        if len(inner) - floor.bit_count() >= wanted:
            break
        cell, step, segment = inner[rng.integers(len(inner))], steps[rng.integers(4)], 0
        for _ in range(rng.integers(1, 4)):
            if floor >> cell & 1:  # else it is wall already, perhaps the outer one
                segment |= 1 << cell
                cell += step
        if _in_one_piece(floor & ~segment, width):
            floor &= ~segment
    return floor


def _in_one_piece(floor: int, width: int) -> bool:
    reached, grown = 0, floor & -floor
    while grown != reached:
        reached = grown
        grown = (reached | reached << 1 | reached >> 1 | reached << width | reached >> width) & floor
    return reached == floor and floor != 0


def _original(config: SokobanConfig, seed: int) -> Level | None:
    room = gym_levels.generate(seed, (config.dim_x, config.dim_y), config.num_boxes, config.search_depth)
    if room is None:
        return None
    fixed, state = room
    level = Level(
        floor=_mask(fixed > 0),
        targets=_mask(fixed == 2),
        player=int(np.flatnonzero(state == 5)[0]),
        boxes=_mask((state == 3) | (state == 4)),
        width=config.dim_y,
    )
    if config.solvable_within is None:
        return level  # it was made by playing backwards, hence can be solved
    solution = shortest_solution(*level[:4], config.dim_y)
    return level if solution is not None and len(solution) <= config.solvable_within else None


def _mask(cells: np.ndarray) -> int:
    return sum(1 << int(cell) for cell in np.flatnonzero(cells))
