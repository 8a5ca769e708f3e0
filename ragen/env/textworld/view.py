"""What a player sees of a TextWorld game, told from the facts of its state.

The package writes prose only for games compiled to a Z-machine, seconds each; told from its facts, a game needs no
compiler and no interpreter, and every turn shows all that is in sight.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_DIRECTIONS = ("north", "east", "south", "west")


def tell(facts: Iterable[Any]) -> str:
    """The room, its furniture and what it holds, things on the floor, exits and doors, and what the player carries.

    Args:
        facts: propositions `name(arguments)` whose arguments have a human `name` and a `type`.
    """
    told = [(fact.name, [(arg.name, arg.type) for arg in fact.arguments]) for fact in facts]
    room = next(args[1][0] for name, args in told if name == "at" and args[0][1] == "P")
    state = {args[0]: name for name, args in told if name in ("open", "closed", "locked") and len(args) == 1}
    held: dict[str, list[str]] = {}  # a container, a piece of furniture or "" for the player → what it holds
    for name, args in told:
        if name in ("in", "on"):
            held.setdefault("" if args[1][1] == "I" else args[1][0], []).append(args[0][0])

    lines = [f"You are in the {room}."]
    floor = []
    for name, args in sorted(told):
        if name != "at" or args[0][1] == "P" or args[1][0] != room:
            continue
        (thing, kind), things = args[0], ", ".join(sorted(held.get(args[0][0], ()))) or "nothing"
        if kind == "c":
            how = state.get((thing, kind), "open")
            lines.append(f"A container: {thing}, {how}" + (f", in it: {things}." if how == "open" else "."))
        elif kind == "s":
            lines.append(f"A piece of furniture: {thing}, on it: {things}.")
        else:
            floor.append(thing)
    if floor:
        lines.append(f"On the floor: {', '.join(sorted(floor))}.")
    lines += _exits(told, room, state)
    lines.append(f"You carry: {', '.join(sorted(held.get('', ()))) or 'nothing'}.")
    return "\n".join(lines)


def _exits(told: list, room: str, state: dict) -> list[str]:
    """`<room2> is north of <room>` makes a way north: through a door where one links the two, else free."""
    doors = {(args[0][0], args[2][0]): args[1] for name, args in told if name == "link"}
    ways = []
    for name, args in told:
        direction = name.removesuffix("_of")
        if direction in _DIRECTIONS and name != direction and args[1][0] == room and args[0][1] == "r":
            door = doors.get((room, args[0][0]))
            how = f" (door: {door[0]}, {state.get(door, 'open')})" if door else ""
            ways.append((_DIRECTIONS.index(direction), direction + how))
    return [f"Exits: {', '.join(way for _, way in sorted(ways))}."] if ways else []
