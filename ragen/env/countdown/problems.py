"""Countdown problems: made so that a solution exists, read from rows, and solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ragen.env.countdown.arithmetic import combine, join

SIGNS = "+-*/"
#: Most numbers of a problem that comes from a file.
MAX_NUMBERS = 8
#: Pairs that the solver combines before it gives up: some 0.1 s.
_SOLVER_BUDGET = 60_000
_TRIES = 10_000


class Problem(NamedTuple):
    target: int
    numbers: tuple[int, ...]


def generate(count: int, max_number: int, max_target: int, rng: np.random.Generator) -> tuple[Problem, str]:
    """A problem of `count` numbers, and a solution of it.

    Numbers are drawn, then joined two by two with signs that keep the values whole and above 0, until one is left: the
    target, if it is in range.

    Raises:
        ValueError: ten thousand draws gave no target in range (no config that `CountdownConfig` accepts came near it).
    """
    for _ in range(_TRIES):
        numbers = [int(n) for n in rng.integers(1, max_number + 1, count)]
        parts = [(number, str(number)) for number in numbers]
        while len(parts) > 1:
            (left, left_text), (right, right_text) = (parts.pop(int(rng.integers(len(parts)))) for _ in range(2))
            if left < right:
                (left, left_text), (right, right_text) = (right, right_text), (left, left_text)
            signs = "+*" + "-" * (left > right) + "/" * (left % right == 0)
            sign = signs[int(rng.integers(len(signs)))]
            parts.append((int(combine(sign, Fraction(left), Fraction(right))), join(sign, left_text, right_text)))
        target, solution = parts[0]
        # A target that is one of the numbers hides a step that cancels itself, such as `* 1`.
        if target <= max_target and target not in numbers:
            return Problem(target, tuple(numbers)), solution
    raise ValueError(
        f"no countdown problem of {count} numbers up to {max_number} with a target up to {max_target} in {_TRIES} "
        "tries; raise max_target or lower max_number"
    )


def from_row(row: Mapping[str, Any], where: str) -> Problem:
    """The problem in a row of a file.

    Raises:
        ValueError: a column is missing or its value unusable; the message starts with `where`.
    """
    numbers = row.get("nums", row.get("numbers"))
    target = row.get("target")
    if not isinstance(numbers, Sequence) or isinstance(numbers, str) or not 1 <= len(numbers) <= MAX_NUMBERS:
        raise ValueError(f"{where}: nums is {str(numbers)[:80]!r}; give a list of 1 to {MAX_NUMBERS} whole numbers")
    for value in (target, *numbers):
        if type(value) is not int or not 0 <= value < 10**6:
            raise ValueError(f"{where}: {str(value)[:80]!r} is no whole number from 0 to 999999")
    return Problem(target, tuple(numbers))


@lru_cache(maxsize=1024)
def solve(problem: Problem) -> str | None:
    """An expression of all the numbers that comes to the target; None where there is none, or none was found soon."""
    budget = [_SOLVER_BUDGET]
    return _solve([(Fraction(n), str(n)) for n in problem.numbers], Fraction(problem.target), set(), budget)


def _solve(parts: list[tuple[Fraction, str]], target: Fraction, seen: set, budget: list[int]) -> str | None:
    if len(parts) == 1:
        return parts[0][1] if parts[0][0] == target else None
    key = tuple(sorted(value for value, _ in parts))
    if key in seen:
        return None
    seen.add(key)
    for i, (left, left_text) in enumerate(parts):
        for j, (right, right_text) in enumerate(parts):
            if i == j:
                continue
            rest = [part for k, part in enumerate(parts) if k not in (i, j)]
            for sign in SIGNS:
                if sign in "+*" and i > j:
                    continue  # the same as j with i
                budget[0] -= 1
                if budget[0] < 0:
                    return None
                value = combine(sign, left, right)
                if value is not None and (rest or value == target):
                    found = _solve([*rest, (value, join(sign, left_text, right_text))], target, seen, budget)
                    if found is not None:
                        return found
    return None
