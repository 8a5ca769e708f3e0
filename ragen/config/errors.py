"""What is wrong with a configuration: one `Fault` per line, all of them in one `ConfigError`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["ConfigError", "Fault", "nearest"]

#: Stands for "no value to show", which differs from a value of None.
NO_VALUE = object()


@dataclass(frozen=True)
class Fault:
    """One thing to put right: the key as typed, its value, what is wrong with it and what to do."""

    key: str
    value: Any
    problem: str
    fix: str = ""

    def __str__(self) -> str:
        shown = self.key if self.value is NO_VALUE else f"{self.key}={_show(self.value)}"
        text = f"{shown}: {self.problem}" if shown else self.problem
        return " ".join((f"{text}; {self.fix}" if self.fix else text).split())


class ConfigError(ValueError):
    """A run that cannot start. `faults` holds every fault that was found; the text has one line for each."""

    def __init__(self, faults: Iterable[Fault]):
        self.faults = list(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, or None where nothing does."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
