"""What answer a text gives, and whether two answers say the same. Exact: numbers are compared as fractions."""

from __future__ import annotations

import re
from fractions import Fraction

#: A longer text is no answer.
MAX_CHARACTERS = 1000

_STATED = re.compile(r"(?:the answer is:?|####)[ \t]*([^\n]+)", re.IGNORECASE)
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]{{1,2}}(?![0-9A-Za-z]))?"
#: A mixed number, a fraction or a decimal. Not a part of a name, a power or an argument (`x2`, `3^2`, `\sqrt{2}`), and
#: in `7-2` the sign belongs to no number.
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9.^{_])(?:(?<![\w)}])(?P<sign>[-+]))?"
    rf"(?:(?P<whole>{_DIGITS})\s+(?P<top>[0-9]+)/(?P<bottom>[0-9]+)|"
    rf"(?P<over>{_DECIMAL})(?:\s*/\s*(?P<under>{_DECIMAL}))?)"
)
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|([0-9])\s*([0-9]))")
_UNIT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}")
_DRESS = re.compile(r"\\(?:left|right|displaystyle|[,;! ])|\\?[$%]|\^\s*\{?\s*\\circ\s*\}?|°")
_NAME = re.compile(r"^[A-Za-z]\s*=\s*")


def stated_answer(text: str) -> str:
    """The answer in a solution: its last `\\boxed{…}`, else its last `The answer is: …` or `#### …`, else all of it."""
    boxed = _boxed(text)
    if boxed is not None:
        return boxed
    stated = _STATED.findall(text)
    return (stated[-1] if stated else text).strip()


def is_answer(given: str, expected: str) -> bool:
    """Whether `given` is an answer at all: where a number is expected, it holds one."""
    if len(given) > MAX_CHARACTERS:
        return False
    given = stated_answer(given)
    return bool(_normal(given)) if _number(expected) is None else last_number(given) is not None


def same_answer(given: str, expected: str) -> bool:
    """Whether `given` says what `expected` does: the same number, or where none is expected, the same text.

    Currency and per cent signs, thousands separators, units, LaTeX's dress, case and spaces do not matter. Of several
    numbers in `given` the last one counts.
    """
    if not is_answer(given, expected):
        return False
    given, wanted = stated_answer(given), _number(expected)
    return _normal(given) == _normal(expected) if wanted is None else last_number(given) == wanted


def last_number(text: str) -> Fraction | None:
    """The last number in `text`; None where there is none, or its denominator is 0."""
    last = None
    for last in _NUMBER.finditer(_undress(text)):  # noqa: B007
        pass
    return None if last is None else _value(last)


def _number(text: str) -> Fraction | None:
    """The number that `text` as a whole is."""
    match = _NUMBER.fullmatch(_undress(text))
    return None if match is None else _value(match)


def _value(match: re.Match) -> Fraction | None:
    digits = {name: text.replace(",", "") for name, text in match.groupdict().items() if text and name != "sign"}
    part = {name: Fraction(text) for name, text in digits.items()}
    if 0 in (part.get("bottom"), part.get("under")):
        return None
    value = part["whole"] + part["top"] / part["bottom"] if "whole" in part else part["over"] / part.get("under", 1)
    return -value if match.group("sign") == "-" else value


def _boxed(text: str) -> str | None:
    """What the last `\\boxed{…}` holds, inner braces balanced."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, first = 1, start + len("\\boxed{")
    for position in range(first, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if not depth:
            return text[first:position].strip()
    return None


def _undress(text: str) -> str:
    text = _FRACTION.sub(lambda m: f" {m.group(1) or m.group(3)}/{m.group(2) or m.group(4)}", text.replace("−", "-"))
    text = _NAME.sub("", _DRESS.sub("", _UNIT.sub("", text)).strip()).rstrip(".")
    return re.sub(r"^([-+])\s+", r"\1", text)


def _normal(text: str) -> str:
    """The text without dress, spaces and case."""
    return re.sub(r"\s+", "", _undress(text)).casefold()
