"""Reads and evaluates arithmetic that a model wrote, exactly and within bounds. Nothing is ever executed.

    expression := term (('+' | '-') term)*
    term       := factor (('*' | '/') factor)*
    factor     := '-' factor | number | '(' expression ')'

There are no powers, functions or names. With at most `MAX_NUMBERS` numbers of `MAX_DIGITS` digits no value grows beyond
some hundred digits, so reading a text costs microseconds whatever it says.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

MAX_CHARACTERS = 200
MAX_NUMBERS = 16
MAX_DIGITS = 6
MAX_DEPTH = 20

_TOKEN = re.compile(r"\s*([0-9]+|[-+*/()])")
_OTHER_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})
_PRIORITY = {"+": 1, "-": 1, "*": 2, "/": 2}


class ArithmeticFault(ValueError):
    """The text is no arithmetic, or goes beyond the bounds."""


class Evaluated(NamedTuple):
    """What an expression comes to."""

    value: Fraction | None
    """None: it divides by zero."""
    numbers: list[int]
    """The numbers in it, in the order they are written."""


def evaluate(text: str) -> Evaluated:
    """The exact value of an expression of whole numbers, `+ - * /` and parentheses.

    Raises:
        ArithmeticFault: it is no such expression, or longer or deeper than the bounds above.
    """
    if len(text) > MAX_CHARACTERS:
        raise ArithmeticFault(f"longer than {MAX_CHARACTERS} characters")
    reader = _Reader(_tokens(text))
    value = reader.expression(0)
    if reader.next is not None:
        raise ArithmeticFault(f"{reader.next!r} cannot stand there")
    return Evaluated(value, reader.numbers)


def _tokens(text: str) -> list[str]:
    text = text.translate(_OTHER_SIGNS).strip()
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ArithmeticFault("it holds more than whole numbers, + - * / and parentheses")
        tokens.append(match.group(1))
        position = match.end()
    return tokens


class _Reader:
    """Recursive descent over the tokens. A value of None (a division by zero) makes all that holds it None."""

    def __init__(self, tokens: list[str]):
        self._tokens, self._position = tokens, 0
        self.numbers: list[int] = []

    @property
    def next(self) -> str | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _take(self) -> str | None:
        token = self.next
        self._position += 1
        return token

    def expression(self, depth: int) -> Fraction | None:
        value = self._term(depth)
        while self.next in ("+", "-"):
            value = combine(self._take(), value, self._term(depth))
        return value

    def _term(self, depth: int) -> Fraction | None:
        value = self._factor(depth)
        while self.next in ("*", "/"):
            value = combine(self._take(), value, self._factor(depth))
        return value

    def _factor(self, depth: int) -> Fraction | None:
        if depth > MAX_DEPTH:
            raise ArithmeticFault(f"nested more than {MAX_DEPTH} deep")
        token = self._take()
        if token == "-":
            value = self._factor(depth + 1)
            return None if value is None else -value
        if token == "(":
            value = self.expression(depth + 1)
            if self._take() != ")":
                raise ArithmeticFault("a parenthesis is not closed")
            return value
        if token is None or not token.isdigit():
            raise ArithmeticFault("a number is missing" if token is None else f"{token!r} cannot stand there")
        if len(token) > MAX_DIGITS or len(self.numbers) == MAX_NUMBERS:
            raise ArithmeticFault(f"more than {MAX_NUMBERS} numbers, or one of more than {MAX_DIGITS} digits")
        self.numbers.append(int(token))
        return Fraction(int(token))


def combine(sign: str, left: Fraction | None, right: Fraction | None) -> Fraction | None:
    """`left sign right`; None where either is None or a division is by zero."""
    if left is None or right is None:
        return None
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    return left / right if right else None


def join(sign: str, left: str, right: str) -> str:
    """The expression `left sign right` as text, with the parentheses that it needs."""
    priority = _PRIORITY[sign]
    if _loosest(left) < priority:
        left = f"({left})"
    if _loosest(right) < priority or (sign in "-/" and _loosest(right) == priority):
        right = f"({right})"
    return f"{left} {sign} {right}"


def _loosest(text: str) -> int:
    """The priority of the sign outside all parentheses that binds least; 3 where there is none."""
    depth, loosest = 0, 3
    for character in text:
        depth += (character == "(") - (character == ")")
        if not depth and character in _PRIORITY:
            loosest = min(loosest, _PRIORITY[character])
    return loosest
