"""Arithmetic problems: an expression built step by step, shown as it is or told as a story."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ragen.env.countdown.arithmetic import combine, join

#: Largest value on the way: a calculator's result can be typed in again.
MAX_VALUE = 9999
_NAMES = ("Ada", "Ben", "Chi", "Dana", "Eli", "Fay", "Gus", "Hana")
_THINGS = ("apples", "books", "coins", "stamps", "shells", "marbles", "seeds", "tickets")
_STORY = {
    "+": "Then {name} gets {number} more.",
    "-": "Then {name} gives {number} away.",
    "*": "Then {name} swaps each for {number} of them.",
}


class Problem(NamedTuple):
    text: str
    expression: str
    answer: int


def generate(style: str, operations: int, max_number: int, rng: np.random.Generator) -> Problem:
    """A problem of `operations` operations (+, - and *), all values from 0 to `MAX_VALUE`.

    Args:
        style: `words` or `expression`.
        max_number: largest number added or taken away; factors go from 2 to 9.
    """
    value = int(rng.integers(2, max_number + 1))
    name, things = (str(choices[int(rng.integers(len(choices)))]) for choices in (_NAMES, _THINGS))
    expression, story = str(value), [f"{name} has {value} {things}."]
    for _ in range(operations):
        signs = "+" * (value + max_number <= MAX_VALUE) + "-" * (value > 1) + "*" * (1 < value * 9 <= MAX_VALUE)
        sign = signs[int(rng.integers(len(signs)))]
        least, most = {"+": (1, max_number), "-": (1, min(value, max_number)), "*": (2, 9)}[sign]
        number = int(rng.integers(least, most + 1))
        value = int(combine(sign, Fraction(value), Fraction(number)))
        expression = join(sign, expression, str(number))
        story.append(_STORY[sign].format(name=name, number=number))
    if style == "expression":
        return Problem(f"What is {expression}?", expression, value)
    return Problem(f"{' '.join(story)} How many {things} does {name} have now?", expression, value)
