"""The list of checks: each a small function under the decorator `check`, found by its name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ragen.env.checker.worker import Bench, Finding

Run = Callable[["Bench"], "Iterator[Finding]"]

#: The modules of checks, in the order in which their checks run.
_MODULES = tuple(f"ragen.env.checker.{name}" for name in ("contract", "state", "play"))

_CHECKS: dict[str, Check] = {}


@dataclass(frozen=True)
class Check:
    """One check: its docstring's first line says what must hold."""

    name: str
    run: Run
    needs: tuple[str, ...]
    """Checks that must have found no fault: with it, this one would only find the same again."""

    @property
    def about(self) -> str:
        return (self.run.__doc__ or "").strip().splitlines()[0]


def check(*needs: str) -> Callable[[Run], Run]:
    """Register a function `(Bench) -> iterator of findings` as a check of its own name."""

    def register(run: Run) -> Run:
        if run.__name__ in _CHECKS:
            raise ValueError(f"check {run.__name__!r} is defined twice; rename one")
        _CHECKS[run.__name__] = Check(run.__name__, run, needs)
        return run

    return register


def all_checks() -> dict[str, Check]:
    """Every check by name, in the order in which they run: those that others need come first."""
    for module in _MODULES:
        importlib.import_module(module)  # whose decorators register
    return dict(sorted(_CHECKS.items(), key=lambda item: _MODULES.index(item[1].run.__module__)))
