"""Checks that config dataclasses of environments share. Each raises ValueError: the field, its value and the fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def at_least(config: Any, **least: int) -> None:
    """Each field named is a whole number of at least so much (or None where its default is None)."""
    for key, minimum in least.items():
        value = getattr(config, key)
        if value is None and getattr(type(config), key) is None:
            continue
        if type(value) is not int or value < minimum:
            raise ValueError(f"{key} is {value!r}; give a whole number of at least {minimum}")


def one_of(config: Any, **choices: Sequence[str]) -> None:
    """Each field named has one of the values given."""
    for key, allowed in choices.items():
        if getattr(config, key) not in allowed:
            raise ValueError(f"{key} is {getattr(config, key)!r}; choose one of {', '.join(allowed)}")


def complete_symbols(changed: Mapping[str, str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The default symbols of a grid with some replaced: cell name → one character, no two alike."""
    unknown = sorted(set(changed) - set(defaults))
    if unknown:
        raise ValueError(f"symbols names {', '.join(unknown)}; known: {', '.join(defaults)}")
    symbols = {**defaults, **changed}
    if any(not isinstance(s, str) or len(s) != 1 or s.isspace() for s in symbols.values()):
        raise ValueError(f"symbols must be single characters, got {symbols}; quote them in YAML")
    if len(set(symbols.values())) < len(symbols):
        raise ValueError(f"symbols must all differ, got {symbols}")
    return symbols
