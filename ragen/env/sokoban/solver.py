"""Exact search over Sokoban positions: a shortest solution forwards, and every position near the end backwards.

Cells are numbered row by row. A set of boxes is an int with one bit for each cell, a position the pair (player, boxes).
`floor` and `targets` are such bit sets too. Rooms are closed by walls, so that a step never leaves the board.
"""

from __future__ import annotations

from collections.abc import Iterator


def bits(mask: int) -> Iterator[int]:
    """The cells of a bit set, in ascending order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def steps_of(width: int) -> tuple[int, int, int, int]:
    """What up, down, left and right add to a cell's number."""
    return -width, width, -1, 1


def shortest_solution(
    floor: int, targets: int, player: int, boxes: int, width: int, max_positions: int = 300_000
) -> list[int] | None:
    """The moves (1 up, 2 down, 3 left, 4 right) of a shortest solution: breadth first over moves, walks included.

    Returns [] where it is solved already; None where no solution exists, or none among the first `max_positions`.
    """
    if boxes == targets:
        return []
    # A box outside `alive` can never reach a target: pushes into such cells are not searched.
    alive = _pullable(floor, targets, width)
    steps = steps_of(width)
    parents: dict[tuple[int, int], tuple[tuple[int, int], int] | None] = {(player, boxes): None}
    frontier = [(player, boxes)]
    while frontier and len(parents) <= max_positions:
        reached = []
        for position in frontier:
            player, boxes = position
            for action, step in enumerate(steps, start=1):
                ahead = player + step
                if boxes >> ahead & 1:
                    beyond = ahead + step
                    if not alive >> beyond & 1 or boxes >> beyond & 1:
                        continue
                    after = (ahead, boxes ^ (1 << ahead) ^ (1 << beyond))
                elif floor >> ahead & 1:
                    after = (ahead, boxes)
                else:
                    continue
                if after in parents:
                    continue
                parents[after] = (position, action)
                if after[1] == targets:
                    return _trace(parents, after)
                reached.append(after)
        frontier = reached
    return None


def positions_by_length(
    floor: int, targets: int, width: int, max_length: int, max_positions: int
) -> list[list[tuple[int, int]]]:
    """Backwards from every solved position: item n holds the positions whose shortest solution takes exactly n moves.

    Complete up to `max_length`, or up to the last length whose positions fit in `max_positions` altogether.
    """
    steps = steps_of(width)
    layer = [(player, targets) for player in bits(floor & ~targets)]  # all targets are under boxes then
    seen = set(layer)
    layers = [layer]
    while layer and len(layers) <= max_length:
        before = []
        for player, boxes in layer:
            for step in steps:
                origin = player - step
                if not floor >> origin & 1 or boxes >> origin & 1:
                    continue
                walked = (origin, boxes)
                if walked not in seen:
                    seen.add(walked)
                    before.append(walked)
                ahead = player + step
                if boxes >> ahead & 1:
                    pulled = (origin, boxes ^ (1 << ahead) ^ (1 << player))
                    if pulled not in seen:
                        seen.add(pulled)
                        before.append(pulled)
            if len(seen) > max_positions:
                return layers
        layer = before
        if layer:
            layers.append(layer)
    return layers


def _pullable(floor: int, targets: int, width: int) -> int:
    """The cells from which a lone box could be pushed to some target, wherever the player may be."""
    alive = targets
    frontier = list(bits(targets))
    while frontier:
        cell = frontier.pop()
        for step in steps_of(width):
            origin = cell - step
            if floor >> origin & 1 and not alive >> origin & 1 and floor >> (origin - step) & 1:
                alive |= 1 << origin
                frontier.append(origin)
    return alive


def _trace(parents: dict, position: tuple[int, int]) -> list[int]:
    moves = []
    while parents[position] is not None:
        position, move = parents[position]
        moves.append(move)
    return moves[::-1]
