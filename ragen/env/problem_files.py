"""Problems from files or the Hugging Face hub: read once a process, dealt out by seed.

A source is a `.jsonl` or `.parquet` file, or the name of a Hugging Face dataset (`owner/name`, read by `datasets`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np


class Problems:
    """Rows of a source, by number. Parquet files and hub datasets stay in their compact form until a row is read."""

    def __init__(self, source: str, rows: Any):
        self.source = source
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Mapping[str, Any]:
        rows = self._rows
        # A pyarrow table indexes by column, so take a slice of one row.
        return rows.slice(number, 1).to_pylist()[0] if hasattr(rows, "slice") else rows[number]


@lru_cache(maxsize=8)
def load_problems(source: str, split: str = "train", subset: str | None = None) -> Problems:
    """The rows of `source`.

    Args:
        source: a `.jsonl` or `.parquet` file, or the name of a Hugging Face dataset.
        split, subset: which part of a hub dataset; files have none.

    Raises:
        ValueError: the file or dataset cannot be read, or holds no rows; the message says which and why.
    """
    path = Path(source).expanduser()
    if path.suffix in (".jsonl", ".parquet"):
        if not path.is_file():
            raise ValueError(f"path is {source!r}, but no such file exists; relative paths start from {Path.cwd()}")
        rows = _read_jsonl(path) if path.suffix == ".jsonl" else _read_parquet(path)
    else:
        rows = _read_hub(source, split, subset)
    if not len(rows):
        raise ValueError(f"path is {source!r}, which holds no problems")
    return Problems(source, rows)


def _read_jsonl(path: Path) -> Sequence[Mapping[str, Any]]:
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number} must be a JSON object, got {type(row).__name__}")
            rows.append(row)
    return rows


def _read_parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"path is {str(path)!r}, which cannot be read as parquet: {error}") from error


def _read_hub(source: str, split: str, subset: str | None) -> Any:
    import datasets

    try:
        return datasets.load_dataset(source, subset, split=split)
    except Exception as error:  # offline, unknown name, unknown split: each library below has its own error
        raise ValueError(
            f"path is {source!r}: no .jsonl or .parquet file, and as a Hugging Face dataset (split {split!r}) it "
            f"cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def problem_number(seed: int, count: int) -> int:
    """Which of `count` problems belongs to `seed`: each run of `count` seeds from a multiple of it deals all, shuffled.

    A pure function of its arguments. Within such a run no two seeds give the same problem.
    """
    deal, place = divmod(seed, count)
    return int(_order(count, deal)[place])


@lru_cache(maxsize=8)
def _order(count: int, deal: int) -> np.ndarray:
    return np.random.default_rng(np.random.SeedSequence([count, deal])).permutation(count)
