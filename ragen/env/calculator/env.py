"""Arithmetic with tools: work the problem out with `calculator`, hand the result in with `finish`.

The example of an environment that offers tools (`Env.tools`): an action is a call as JSON text. 1 for the right answer,
0 for another one; either ends the episode. A call that cannot be carried out is an invalid action and says why.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np

from ragen.env.base import Env
from ragen.env.calculator.config import CalculatorConfig
from ragen.env.calculator.problems import Problem, generate
from ragen.env.countdown.arithmetic import MAX_CHARACTERS, ArithmeticFault, evaluate
from ragen.env.tools import read_call, tool, write_call

#: An answer given as text: digits only, so that reading it costs nothing.
_NUMBER = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")

TOOLS = [
    tool(
        "calculator",
        "Works out an expression of whole numbers with + - * / and parentheses.",
        expression={"type": "string", "description": "for example (12 + 30) * 2"},
    ),
    tool("finish", "Hands in the answer and ends the task.", answer={"type": "number"}),
]


class Calculator(Env):
    config_class = CalculatorConfig
    reward_range = (0.0, 1.0)
    isolate = "inline"

    def __init__(self, config: CalculatorConfig | None = None):
        super().__init__(config)
        self.problem: Problem | None = None
        self._last, self._over = "", True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        self.seed_streams(seed, luck)
        self.problem = generate(self.config.style, self.config.operations, self.config.max_number, self.level_rng)
        self._last, self._over, self._calls, self._known = "", False, 0, False
        return self.problem.text, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("the calculator episode is over; call reset first")
        self._calls += 1
        right = False
        try:
            answer = self._carry_out(action)
        except ArithmeticFault as fault:
            valid, text = False, f"Error: {fault}"
        else:
            if answer is not None:
                self._over, right = True, answer == self.problem.answer
                self._last = "Right." if right else "Wrong."
            valid, text = True, self._last
        terminated = self._over
        truncated = not terminated and self._calls >= self.config.max_steps
        self._over = terminated or truncated
        info = {"action_is_valid": valid, "action_is_effective": valid, "success": right}
        return text, 1.0 if right else 0.0, terminated, truncated, info

    def _carry_out(self, action: Any) -> Fraction | None:
        """Make the call; returns the answer that `finish` hands in. ArithmeticFault: it cannot be made, and why."""
        call = read_call(action)
        if call is None:
            raise ArithmeticFault('that is no call; write {"name": "calculator", "arguments": {"expression": "1 + 2"}}')
        if call.name == "calculator" and call.arguments.keys() == {"expression"}:
            expression = call.arguments["expression"]
            if not isinstance(expression, str):
                raise ArithmeticFault("expression must be text")
            value = evaluate(expression).value
            self._known = self._known or value == self.problem.answer
            self._last = "Error: division by zero" if value is None else _shown(value)
            return None
        if call.name == "finish" and call.arguments.keys() == {"answer"}:
            return _number(call.arguments["answer"])
        raise ArithmeticFault("there are calculator(expression) and finish(answer), each with that one argument")

    def render(self, mode: str = "text") -> str:
        """The problem, and what the last call that could be made gave."""
        if mode != "text":
            raise ValueError(f"the calculator has no board to draw: mode {mode!r}; use 'text'")
        return f"{self.problem.text if self.problem else ''}\n{self._last}".strip()

    def instruction(self) -> str:
        return (
            "Solve the arithmetic problem. The calculator works out expressions of whole numbers, of up to "
            f"{MAX_CHARACTERS} characters; finish hands in your answer and ends the task.\n"
            f"Reward: 1 for the right answer, else 0. You have {self.config.max_steps} calls."
        )

    def tools(self) -> list[dict[str, Any]]:
        return TOOLS

    def oracle_action(self) -> str | None:
        """Work the problem out, then hand the result in."""
        if self._over:
            return None
        if not self._known:
            return write_call("calculator", {"expression": self.problem.expression})
        return write_call("finish", {"answer": self.problem.answer})

    def random_action(self, rng: np.random.Generator) -> str | None:
        """A sum of two random numbers, or a random answer."""
        first, second = (int(n) for n in rng.integers(0, self.config.max_number + 1, 2))
        if rng.random() < 0.5:
            return write_call("calculator", {"expression": f"{first} + {second}"})
        return write_call("finish", {"answer": first})


def _number(answer: Any) -> Fraction:
    if isinstance(answer, str) and _NUMBER.fullmatch(answer.strip()):
        return Fraction(answer.strip())
    if isinstance(answer, (int, float)) and not isinstance(answer, bool) and abs(answer) < float("inf"):
        return Fraction(answer)
    raise ArithmeticFault("answer must be a number")


def _shown(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return f"{value.numerator}/{value.denominator}, about {float(value):.6g}"
