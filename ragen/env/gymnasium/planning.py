"""Best actions of a Gymnasium environment that publishes its transitions, as the toy-text ones do: value iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

#: Near 1, so that reward counts almost undiscounted; below 1, so that going round in circles never looks best.
DISCOUNT = 0.99


def best_actions(
    transitions: Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]], tolerance: float = 1e-6
) -> np.ndarray:
    """The greedy action in each state, int (states,).

    Args:
        transitions: state → action → (chance, next state, reward, terminated), states and actions counted from 0.
        tolerance: iterate until no value changes by more.
    """
    flat = [
        (state, action, chance, reached, reward, not done)
        for state, actions in transitions.items()
        for action, outcomes in actions.items()
        for chance, reached, reward, done in outcomes
    ]
    state, action, chance, reached, reward, goes_on = (np.array(column) for column in zip(*flat, strict=True))
    shape = (int(state.max()) + 1, int(action.max()) + 1)
    pair, future = state * shape[1] + action, DISCOUNT * chance * goes_on
    now = np.bincount(pair, chance * reward, minlength=shape[0] * shape[1])
    values, change = np.zeros(shape[0]), np.inf
    while change > tolerance:
        worth = now + np.bincount(pair, future * values[reached], minlength=len(now))
        updated = worth.reshape(shape).max(axis=1)
        change, values = np.abs(updated - values).max(), updated
    return worth.reshape(shape).argmax(axis=1)
