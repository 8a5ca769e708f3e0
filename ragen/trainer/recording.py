"""Recorded groups in place of played ones: which group of a recording stands in for which row of the run.

A pure function of (seed, row), like everything that decides what a run trains on: a resumed run goes on with the next.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from ragen.eval.records import RecordError, holds_records, read_records
from ragen.llm_agent.seeds import offline_order
from ragen.llm_agent.trajectory import Trajectory

__all__ = ["Drawn", "Recording", "load_groups"]

Group = tuple[Trajectory, ...]


@dataclass(frozen=True)
class Drawn:
    """A recorded group as a step trains on it."""

    episodes: Group
    """Its usable members."""
    round: int
    """How often the recording was gone through before: 0 in the first pass."""


@functools.lru_cache(maxsize=1)  # the check before the start, the plan and the trainer ask for the same
def load_groups(path: str) -> tuple[Group, ...]:
    """The groups of a file of episodes, or of all such files in a folder, those without a usable episode left out.

    Everything is held in memory.

    Raises:
        RecordError: nothing there, a line that cannot be read, or two episodes that say they are the same member.
    """
    groups: dict[tuple, dict[int, Trajectory]] = defaultdict(dict)
    for file in _files(Path(path)):
        for record in read_records(file):
            t = record.trajectory
            members = groups[str(file), record.step, t.tag, t.group, t.seed]
            if t.member in members:
                raise RecordError(
                    f"{file}:{record.line}: {t.tag} group {t.group} seed {t.seed} has a member {t.member} already: "
                    "several runs in one file?"
                )
            members[t.member] = t
    usable = (tuple(m for _, m in sorted(members.items()) if m.usable) for members in groups.values())
    return tuple(group for group in usable if group)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [file for pattern in ("*.jsonl", "*.jsonl.gz") for file in path.rglob(pattern) if holds_records(file)]
    if not found:
        raise RecordError(f"{path}: no file of episodes in this folder")
    return sorted(found, key=lambda file: (str(file.parent), _number(file), file.name))


def _number(file: Path) -> int:
    stem = file.name.split(".")[0]
    return int(stem) if stem.isdecimal() else -1


class Recording:
    """Deals recorded groups to rows.

    Args:
        groups: from `load_groups`.
        ratio: share of the rows that get one, spread evenly: of any n rows in a row ratio · n, up to rounding.
        seed: root of the order of each pass.
    """

    def __init__(self, groups: Sequence[Group], ratio: float, seed: int):
        self._groups, self._seed = groups, seed
        self._ratio = Fraction(str(ratio))  # as written: 0.29 is 29/100

    def draw(self, row: int) -> Drawn | None:
        """The recorded group of a row; None: the row is to be played. Each group comes once a pass."""
        number = self._dealt(row)
        if self._dealt(row + 1) == number:
            return None
        round_, place = divmod(number, len(self._groups))
        return Drawn(self._groups[_order(self._seed, round_, len(self._groups))[place]], round_)

    def _dealt(self, row: int) -> int:
        """Recorded groups among the rows before `row`."""
        return int(self._ratio * row)


@functools.lru_cache(maxsize=2)
def _order(seed: int, round_: int, count: int) -> np.ndarray:
    return np.random.default_rng(offline_order(seed, round_)).permutation(count)
