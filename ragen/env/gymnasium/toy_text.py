"""How the states of Gymnasium's Taxi and CliffWalking read, and how to play its Blackjack well.

Examples of the functions that `env_config.state` and `env_config.oracle` name.
"""

from __future__ import annotations

TAXI_STOPS = {"R": (0, 0), "G": (0, 4), "Y": (4, 0), "B": (4, 3)}


def taxi(state: int) -> str:
    """Taxi: its 500 states as places. Rows and columns count from 0 at the top left."""
    state, destination = divmod(int(state), 4)
    cell, passenger = divmod(state, 5)
    names = list(TAXI_STOPS)
    where = "in the taxi" if passenger == 4 else _stop(names[passenger])
    return f"Taxi: ({cell // 5},{cell % 5}). Passenger: {where}. Destination: {_stop(names[destination])}."


def cliff_walking(state: int) -> str:
    """CliffWalking: 4 rows of 12 cells; P you, _ ground, C cliff, G goal."""
    cells = list("_" * 36 + "_" + "C" * 10 + "G")
    cells[int(state)] = "P"
    return "\n".join("".join(cells[row * 12 : row * 12 + 12]) for row in range(4))


def blackjack_policy(state: tuple[int, int, int]) -> str:
    """The best play of Blackjack with an infinite deck and only hit and stick (found by recursion over the cards)."""
    total, dealer, usable_ace = (int(part) for part in state)
    if usable_ace:
        stick = total >= 19 or (total == 18 and dealer not in (1, 9, 10))
    else:
        stick = total >= 17 or (total >= 13 and 2 <= dealer <= 6) or (total == 12 and 4 <= dealer <= 6)
    return "Stick" if stick else "Hit"


def _stop(name: str) -> str:
    return "{} ({},{})".format(name, *TAXI_STOPS[name])
