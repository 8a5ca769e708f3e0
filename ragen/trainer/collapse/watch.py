"""Judges each step's signals by the rules and counts bad steps in a row: one noisy step is no collapse."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ragen.trainer.collapse.rules import RULES

__all__ = ["ACTIONS", "PREFIX", "Alarm", "CollapseWatch"]

#: none: signals are logged, nothing is judged; warn: say so; stop: save and end the run.
ACTIONS = ("none", "warn", "stop")
PREFIX = "collapse/"


@dataclass(frozen=True)
class Alarm:
    """A rule that held for at least `patience` looks in a row."""

    tag: str
    rule: str
    signal: str
    value: float
    looks: int
    """Looks in a row, this one included."""
    reason: str

    def __str__(self) -> str:
        return f"{self.tag}: {self.rule} for {self.looks} looks in a row ({self.reason})"


class CollapseWatch:
    """What is normal in this run, and how long each rule has held.

    Its state follows from the steps seen: a resumed run feeds it `metrics.jsonl` and goes on where it was.

    Args:
        thresholds: rule → threshold; None turns the rule off.
        patience: looks in a row after which a rule that holds is an alarm.
        baseline_steps: looks at a signal that say what is normal; no rule that compares with them holds before.
    """

    def __init__(self, thresholds: Mapping[str, float | None], *, patience: int, baseline_steps: int):
        self._rules = [(RULES[name], limit) for name, limit in thresholds.items() if limit is not None]
        self._patience, self._baseline_steps = patience, baseline_steps
        self._first: dict[str, list[float]] = defaultdict(list)
        self._held: dict[str, int] = defaultdict(int)

    def observe(self, metrics: Mapping[str, Any]) -> tuple[dict[str, float], list[Alarm]]:
        """Judge one step.

        Args:
            metrics: the step's metrics; only `collapse/<tag>/<signal>` are looked at. A signal that the step lacks
                leaves the counts of its rules as they are; None counts as not finite.

        Returns:
            `collapse/<tag>/alarm/<rule>` → looks in a row for which the rule has held, 0 where it does not, and the
            alarms.
        """
        counts: dict[str, float] = {}
        alarms: list[Alarm] = []
        for key, given in metrics.items():
            if not key.startswith(PREFIX):
                continue
            for rule, limit in self._rules:
                if not key.endswith(f"/{rule.signal}"):
                    continue
                tag = key.removeprefix(PREFIX).removesuffix(f"/{rule.signal}")
                name = f"{PREFIX}{tag}/alarm/{rule.name}"
                value = math.nan if given is None else float(given)
                reason = rule.judge(value, self._normal(key), limit)
                self._held[name] = self._held[name] + 1 if reason else 0
                counts[name] = float(self._held[name])
                if self._held[name] >= self._patience:
                    alarms.append(Alarm(tag, rule.name, rule.signal, value, self._held[name], reason))
            if given is not None and math.isfinite(given) and len(self._first[key]) < self._baseline_steps:
                self._first[key].append(float(given))
        return counts, alarms

    def replay(self, history: Iterable[Mapping[str, Any]]) -> None:
        """See the steps that the run has behind it."""
        for metrics in history:
            self.observe(metrics)

    def _normal(self, key: str) -> float | None:
        first = self._first[key]
        return statistics.median(first) if len(first) >= self._baseline_steps else None
