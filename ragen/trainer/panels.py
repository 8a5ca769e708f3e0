"""Validation results of one run, kept across a resume, and the table that compares the first with the last."""

from __future__ import annotations

import json
from pathlib import Path

from ragen.eval.statistics import paired_difference

#: (tag, seed, member) → 1.0 where the episode solved its task, else 0.0.
Panel = dict[tuple[str, int, int], float]


class Panels:
    """The run's first and last panel. The first is kept in `<run>/first_panel.json`, so that a resumed run has it too.

    Args:
        run_dir: the run's folder; None: nothing is kept.
    """

    def __init__(self, run_dir: str | None):
        self._path = Path(run_dir) / "first_panel.json" if run_dir else None
        self._first: tuple[int, Panel] | None = None
        self._last: tuple[int, Panel] | None = None
        if self._path is not None and self._path.exists():
            record = json.loads(self._path.read_text())
            panel = {(tag, seed, member): success for tag, seed, member, success in record["episodes"]}
            self._first = (record["step"], panel)

    def add(self, step: int, panel: Panel) -> None:
        """Take the panel played after `step` updates."""
        self._last = (step, panel)
        if self._first is None or step < self._first[0]:
            self._first = self._last
            if self._path is not None:
                record = {"step": step, "episodes": [[*key, success] for key, success in panel.items()]}
                self._path.write_text(json.dumps(record))

    def table(self) -> str:
        """Success before and after on the same episodes, with a paired 95 % interval; empty without two panels."""
        if self._first is None or self._last is None or self._first[0] == self._last[0]:
            return ""
        (first_step, first), (last_step, last) = self._first, self._last
        lines = [
            f"Success on the validation panel, after {first_step} and after {last_step} steps:",
            f"{'tag':<24}{'episodes':>9}{'before':>9}{'after':>9}{'gain':>8}   95 % interval (points)",
        ]
        for tag in dict.fromkeys(tag for tag, _, _ in first):
            keys = [key for key in first if key[0] == tag and key in last]
            if len(keys) < 2:
                continue
            before, after = ([100 * panel[key] for key in keys] for panel in (first, last))
            mean, low, high = paired_difference(before, after)
            lines.append(
                f"{tag:<24}{len(keys):>9}{sum(before) / len(keys):>8.1f}%{sum(after) / len(keys):>8.1f}%"
                f"{mean:>+8.1f}   [{low:+.1f}, {high:+.1f}]"
            )
        return "\n".join(lines)
