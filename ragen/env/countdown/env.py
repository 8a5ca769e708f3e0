"""Countdown: write an expression that uses every given number once and comes to the target. One answer an episode.

1 for a right equation, 0.1 for one of the right numbers with another value, else 0. A text that is no arithmetic is an
invalid action and leaves the episode as it is.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from ragen.env.base import Env, level_stream
from ragen.env.countdown.arithmetic import MAX_CHARACTERS, ArithmeticFault, evaluate, join
from ragen.env.countdown.config import CountdownConfig
from ragen.env.countdown.problems import SIGNS, Problem, from_row, generate, solve
from ragen.env.problem_files import load_problems, problem_number


class Countdown(Env):
    config_class = CountdownConfig
    reward_range = (0.0, 1.0)
    isolate = "inline"

    def __init__(self, config: CountdownConfig | None = None):
        super().__init__(config)
        self._text, self._over = "", True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        """Pose the problem of `seed`.

        Raises:
            ValueError: `path` cannot be read, or its row is no problem.
        """
        self.seed_streams(seed, luck)
        config = self.config
        if config.path is not None:
            problems = load_problems(config.path, config.split)
            number = problem_number(seed, len(problems))
            self.load_problem(from_row(problems[number], f"{config.path}, row {number}"))
        else:
            self.load_problem(
                *_generated(config.min_numbers, config.max_numbers, config.max_number, config.max_target, seed)
            )
        return self._text, {}

    def load_problem(self, problem: Problem, solution: str | None = None) -> None:
        """Start the episode of a given problem; `solution` saves the oracle the search."""
        self.problem, self._solution, self._over = problem, solution, False
        self._text = f"Target: {problem.target}\nNumbers: {', '.join(map(str, problem.numbers))}"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("the Countdown episode is over; call reset first")
        try:
            value, numbers, stated = _equation(action)
        except ArithmeticFault:
            info = {"action_is_valid": False, "action_is_effective": False, "success": False}
            return self._text, 0.0, False, False, info
        self._over = True
        same_numbers = sorted(numbers) == sorted(self.problem.numbers)
        right = same_numbers and value == self.problem.target and stated == value
        info = {"action_is_valid": True, "action_is_effective": True, "success": right}
        if right:
            note = "Right."
        elif not same_numbers:
            note = "Wrong: not exactly the given numbers."
        else:
            note = f"Wrong: it comes to {'a division by zero' if value is None else value}."
        self._text += f"\n{note}"
        return self._text, 1.0 if right else 0.1 if same_numbers else 0.0, True, False, info

    def render(self, mode: str = "text") -> str:
        if mode != "text":
            raise ValueError(f"countdown has no board to draw: mode {mode!r}; use 'text'")
        return self._text

    def instruction(self) -> str:
        return (
            "Countdown: write an expression that comes to the target. Use each given number exactly once, with + - * / "
            "and parentheses. Example for target 5 and numbers 3, 4, 8: 8 / 4 + 3.\n"
            "Reward: 1 for the target, 0.1 for exactly the given numbers with another result, else 0."
        )

    def oracle_action(self) -> str | None:
        """A solution: that by which the problem was made, else one that a search finds (None: none, or none soon)."""
        return None if self._over else self._solution or solve(self.problem)

    def random_action(self, rng: np.random.Generator) -> str | None:
        """The numbers in a random order, joined by random signs."""
        numbers = [str(self.problem.numbers[i]) for i in rng.permutation(len(self.problem.numbers))]
        text = numbers[0]
        for number in numbers[1:]:
            text = join(SIGNS[int(rng.integers(len(SIGNS)))], text, number)
        return text


@lru_cache(maxsize=1024)
def _generated(fewest: int, most: int, max_number: int, max_target: int, seed: int) -> tuple[Problem, str]:
    """The problem of a seed and its solution. Kept, since every member of a group asks for it."""
    rng = level_stream(seed)
    return generate(int(rng.integers(fewest, most + 1)), max_number, max_target, rng)


def _equation(action: Any) -> tuple[Fraction | None, list[int], Fraction | None]:
    """Value and numbers of the expression in `action`, and the result that it states after `=`, by default that value.

    Raises:
        ArithmeticFault: it is no expression, or none within bounds.
    """
    if not isinstance(action, str):
        raise ArithmeticFault("it is no text")
    if len(action) > MAX_CHARACTERS:
        raise ArithmeticFault(f"longer than {MAX_CHARACTERS} characters")
    expression, equals, stated = action.partition("=")
    value, numbers = evaluate(expression)
    return value, numbers, evaluate(stated).value if equals else value
