"""What is kept of a run as it goes: `metrics.jsonl` (always), recorded episodes (on demand), and the end's marker."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ragen.config.run_dir import FINISHED
from ragen.eval.records import write_records
from ragen.llm_agent.trajectory import Trajectory


class RunLogger:
    """veRL's `Tracking` with `<run>/metrics.jsonl` beside it: one line a step, each step once.

    A resumed run drops the lines of steps that it will do again.

    Args:
        tracking: veRL's logger, which holds the configured backends.
        run_dir: the run's folder, or None for no file.
        last_step: last step that the present weights have seen; later lines of the file are from an abandoned future.
    """

    def __init__(self, tracking: Any, run_dir: str | None, last_step: int):
        self._tracking = tracking
        self._path = Path(run_dir) / "metrics.jsonl" if run_dir else None
        self._steps: set[int] = set()
        if self._path is not None and self._path.exists():
            kept = [line for line in _whole_lines(self._path) if json.loads(line)["step"] <= last_step]
            self._steps = {json.loads(line)["step"] for line in kept}
            _write_atomic(self._path, "".join(kept))

    def log(self, data: Mapping[str, Any], step: int) -> None:
        """Send one step's metrics to every backend and append them to the file."""
        self._tracking.log(data=data, step=step)
        if self._path is None or step in self._steps:
            return
        self._steps.add(step)
        record = {"step": step, **{key: _plain(value) for key, value in data.items()}}
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def finish(self, exit_code: int = 0) -> None:
        """Close every backend."""
        self._tracking.finish(exit_code=exit_code)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tracking, name)


def write_episodes(path: Path, trajectories: Sequence[Trajectory], step: int) -> None:
    """Write one step's episodes as records (docs/records.md), whole or not at all."""
    write_records(path, trajectories, step=step)


def mark_finished(run_dir: str, summary: Mapping[str, Any]) -> None:
    """Write `<run>/finished.json`: the same command will say so instead of resuming."""
    _write_atomic(Path(run_dir) / FINISHED, json.dumps(dict(summary), indent=2) + "\n")


def _plain(value: Any) -> Any:
    """A JSON number (NaN and infinities as null) or the value's text."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else None


def _whole_lines(path: Path) -> list[str]:
    """Lines that end: a crash may have cut the last one."""
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _write_atomic(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)
