"""The 2x2 cube: stickers, turns, whole-cube rotations, and the shortest way to the solved cube.

A cube is a string of 24 colours, faces in the order of `FACES`, each face read as the net shows it:

        U U
        U U
    L L F F R R B B
    L L F F R R B B
        D D
        D D

Every turn is computed from where the stickers lie in space; no table is written by hand.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations

import numpy as np

FACES = "ULFRBD"
#: Colours of the solved cube, by the order of `FACES`: white, orange, green, red, blue, yellow.
COLOURS = "WOGRBY"
SOLVED = "".join(colour * 4 for colour in COLOURS)

#: The side of each face, and where in space its net's rows (downward) and columns (rightward) run: x right, y up, z
#: to the front.
_FRAMES = {
    "U": ((0, 1, 0), (0, 0, 1), (1, 0, 0)),
    "L": ((-1, 0, 0), (0, -1, 0), (0, 0, 1)),
    "F": ((0, 0, 1), (0, -1, 0), (1, 0, 0)),
    "R": ((1, 0, 0), (0, -1, 0), (0, 0, -1)),
    "B": ((0, 0, -1), (0, -1, 0), (-1, 0, 0)),
    "D": ((0, -1, 0), (0, 0, -1), (1, 0, 0)),
}

Vector = tuple[int, int, int]
#: For each sticker's place, the place that its colour comes from.
Permutation = tuple[int, ...]


def _stickers() -> list[tuple[Vector, Vector]]:
    """Corner and side of each of the 24 stickers."""
    places = []
    for side, down, right in (_FRAMES[face] for face in FACES):
        for row in (-1, 1):
            for column in (-1, 1):
                corner = np.array(side) + row * np.array(down) + column * np.array(right)
                places.append((tuple(corner.tolist()), side))
    return places


_PLACES = _stickers()
_PLACE_NUMBER = {place: number for number, place in enumerate(_PLACES)}


def _quarter(vector: Vector, axis: Vector) -> Vector:
    """The vector turned by 90 degrees, clockwise as seen from the end of `axis` looking back at the centre."""
    v, a = np.array(vector), np.array(axis)
    return tuple((np.cross(v, a) + a * (v @ a)).tolist())


def _turn(face: str, whole_cube: bool = False) -> Permutation:
    axis, source = _FRAMES[face][0], list(range(24))
    for number, (corner, side) in enumerate(_PLACES):
        if whole_cube or np.dot(corner, axis) > 0:
            source[_PLACE_NUMBER[_quarter(corner, axis), _quarter(side, axis)]] = number
    return tuple(source)


def _inverse(permutation: Permutation) -> Permutation:
    return tuple(permutation.index(place) for place in range(24))


def _after(first: Permutation, second: Permutation) -> Permutation:
    return tuple(first[place] for place in second)


#: Name → what it does: a face's letter is a quarter turn clockwise, as seen facing it; with ' counterclockwise.
TURNS: dict[str, Permutation] = {}
for _face in FACES:
    TURNS[_face] = _turn(_face)
    TURNS[_face + "'"] = _inverse(TURNS[_face])


def turned(cube: str, permutation: Permutation) -> str:
    return "".join([cube[place] for place in permutation])


def is_solved(cube: str) -> bool:
    """Whether each face shows one colour, however the whole cube is held."""
    return all(cube[start : start + 4] == cube[start] * 4 for start in range(0, 24, 4))


# --- solving ---------------------------------------------------------------------------------------------------------
#
# Held so that one corner, the lower left one at the back, stays in its place, a cube is changed by turns of U, R and F
# alone: 7! * 3^6 = 3,674,160 cubes. A turn of D, L or B is one of U, R or F with the whole cube held otherwise.


@lru_cache(maxsize=1)
def _rotations() -> tuple[Permutation, ...]:
    """The 24 ways to hold a cube."""
    found = [tuple(range(24))]
    for rotation in found:
        for face in "UR":
            rotated = _after(rotation, _turn(face, whole_cube=True))
            if rotated not in found:
                found.append(rotated)
    return tuple(found)


#: Places of the corner that stays, with the colours that they have when solved.
_FIXED = [(place, SOLVED[place]) for place, (corner, _) in enumerate(_PLACES) if corner == (-1, -1, -1)]
_SOLVER_TURNS = ("U", "U'", "R", "R'", "F", "F'")


def _corner_places() -> list[list[int]]:
    """Of the seven other corners, the places of their stickers: that on U or D first, then clockwise."""
    corners = sorted({corner for corner, _ in _PLACES} - {(-1, -1, -1)})
    found = []
    for corner in corners:
        first = next(side for c, side in _PLACES if c == corner and side[1])
        sides = [first]
        for _ in range(2):  # a third of a turn about the corner's diagonal takes each side to the next
            x, y, z = (s * c for s, c in zip(sides[-1], corner, strict=True))
            order = (z, x, y) if corner[0] * corner[1] * corner[2] > 0 else (y, z, x)
            sides.append(tuple(o * c for o, c in zip(order, corner, strict=True)))
        found.append([_PLACE_NUMBER[corner, side] for side in sides])
    return found


_CORNERS = _corner_places()
_FACTORIALS = (720, 120, 24, 6, 2, 1, 1)
_CUBES = 5040 * 729


def _number_of(cube: str) -> int:
    """The number of a cube that is held as above: its corners' order and twists, mixed radix."""
    where, twists = [], 0
    homes = {frozenset(SOLVED[place] for place in places): home for home, places in enumerate(_CORNERS)}
    for places in _CORNERS:
        colours = [cube[place] for place in places]
        where.append(homes[frozenset(colours)])
        twist = next(t for t, colour in enumerate(colours) if colour in (COLOURS[0], COLOURS[5]))
        twists = 3 * twists + twist
    # The last twist follows from the others.
    order = sum(
        factor * sum(later < corner for later in where[place + 1 :])
        for place, (corner, factor) in enumerate(zip(where, _FACTORIALS, strict=True))
    )
    return order * 729 + twists // 3


class _Distances:
    """Quarter turns from the solved cube, found level by level and only as far as has been asked for."""

    def __init__(self):
        self._order_after, self._twist_after = _turn_tables()
        self._distance = np.full(_CUBES, -1, dtype=np.int8)
        start = _number_of(SOLVED)
        self._distance[start] = 0
        self._level, self._frontier = 0, np.array([start], dtype=np.int32)

    def of(self, number: int) -> int:
        while self._distance[number] < 0:
            self._extend()
        return int(self._distance[number])

    def _extend(self) -> None:
        order, twist = np.divmod(self._frontier, 729)
        self._level += 1
        reached = []
        for turn in range(len(_SOLVER_TURNS)):
            # One turn takes different cubes to different ones, so `after` holds none twice.
            after = self._order_after[turn, order] * 729 + self._twist_after[turn, twist]
            after = after[self._distance[after] < 0]
            self._distance[after] = self._level
            reached.append(after)
        self._frontier = np.concatenate(reached)

    def is_at(self, number: int, level: int) -> bool:
        """Whether the cube is so many turns away; `level` is one that `of` has returned, or less."""
        return self._distance[number] == level


@lru_cache(maxsize=1)
def _distances() -> _Distances:
    return _Distances()


def _turn_tables() -> tuple[np.ndarray, np.ndarray]:
    """What each turn makes of each order of the corners, int (6, 5040), and of each set of twists, int (6, 729)."""
    orders = _all_orders()
    rank = {tuple(order): number for number, order in enumerate(orders.tolist())}
    twists = np.array(np.unravel_index(np.arange(729), (3,) * 6)).T
    twists = np.column_stack([twists, -twists.sum(axis=1) % 3])
    order_after, twist_after = [], []
    for name in _SOLVER_TURNS:
        # The corner that comes to each place, and by how much it is twisted then.
        source, twist = [], []
        for places in _CORNERS:
            came_from = [TURNS[name][place] for place in places]
            corner = next(c for c, old in enumerate(_CORNERS) if came_from[0] in old)
            source.append(corner)
            twist.append(came_from.index(_CORNERS[corner][0]))
        order_after.append([rank[tuple(order)] for order in orders[:, source].tolist()])
        after = (twists[:, source] + twist) % 3
        twist_after.append(after[:, :6] @ 3 ** np.arange(5, -1, -1))
    return np.array(order_after, dtype=np.int32), np.array(twist_after, dtype=np.int32)


def _all_orders() -> np.ndarray:
    """The 5040 orders of seven corners, by number."""
    return np.array(list(permutations(range(7))))


def _held(cube: str) -> tuple[Permutation, str]:
    """How to hold the cube so that the fixed corner is in place, and the cube held so."""
    for rotation in _rotations():
        if all(cube[rotation[place]] == colour for place, colour in _FIXED):
            return rotation, turned(cube, rotation)
    raise ValueError(f"{cube!r} is no cube of the colours {COLOURS}")


def distance(cube: str) -> int:
    """Quarter turns of a shortest solution: 0 to 14."""
    return _distances().of(_number_of(_held(cube)[1]))


def best_turn(cube: str) -> str | None:
    """A first turn of a shortest solution; None where the cube is solved."""
    rotation, held = _held(cube)
    table = _distances()
    left = table.of(_number_of(held))
    if not left:
        return None
    for name in _SOLVER_TURNS:
        if table.is_at(_number_of(turned(held, TURNS[name])), left - 1):
            # The same turn, of the cube as it is held outside: rotate, turn, rotate back.
            outside = _after(_after(rotation, TURNS[name]), _inverse(rotation))
            return next(turn for turn, permutation in TURNS.items() if permutation == outside)
    raise AssertionError("a cube that is not solved has a neighbour nearer to the solved one")
