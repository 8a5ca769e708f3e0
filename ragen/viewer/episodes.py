"""From files of episodes to the data of a page: an index of all, and compressed blocks of a few dozen each.

The page opens the index at once and a block only when one of its episodes is looked at, so ten thousand episodes cost
little. Token ids are stored as numbers of a palette of texts; who wrote which token as runs; log-probabilities of
sampled tokens alone, in thousandths; of contexts, the turns that begin one.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ragen.eval.records import Record, holds_records, read_records
from ragen.llm_agent.trajectory import Trajectory
from ragen.viewer.boards import board_rows
from ragen.viewer.token_texts import TokenTexts

__all__ = ["PageData", "Source", "SourceError", "find_sources", "pack"]

#: Episodes of one compressed block.
BLOCK = 48
#: Recorded episodes of each tag that the tiles of boards may be learned from.
SAMPLES = 200
#: Folders that say what a run's episodes are, not which run.
_KINDS = ("rollouts", "validation", "val", "rollout_data", "validation_data")


class SourceError(ValueError):
    """No episodes where they were looked for."""


@dataclass(frozen=True)
class Source:
    """One file of episodes."""

    path: Path
    run: str
    """Name of the run, as the page shows it."""
    kind: str
    """rollouts, validation, …: the folder's name, or empty."""


@dataclass
class PageData:
    """What a page is made of. Columns have one value for each episode."""

    runs: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in _COLUMNS})
    blocks: list[str] = field(default_factory=list)
    """Base64 of gzipped JSON, `BLOCK` episodes each."""
    symbols: dict[str, set[str]] = field(default_factory=dict)
    """Tag → symbols of its boards."""
    samples: dict[str, list[Trajectory]] = field(default_factory=dict)
    """Tag → some of its episodes."""


_COLUMNS = ("run", "step", "tag", "group", "member", "seed", "status", "end", "success", "return", "turns", "tokens")
_STATUS = {"finished": 0, "truncated": 1, "failed": 2}


def find_sources(paths: Sequence[Path]) -> list[Source]:
    """Every file of episodes that the paths are or hold, steps in their order.

    Raises:
        SourceError: a path that does not exist, or holds no episodes.
    """
    sources: list[Source] = []
    for path in paths:
        if not path.exists():
            raise SourceError(f"{path}: no such file or folder")
        files = [path] if path.is_file() else sorted(_jsonl(path), key=_natural)
        found = [file for file in files if holds_records(file)]
        if not found:
            raise SourceError(
                f"{path}: holds no episodes; training writes them with trainer.rollout_data_dir=FOLDER, an "
                "evaluation as rollouts.jsonl"
            )
        sources += [_source(file) for file in found]
    return sources


def _jsonl(folder: Path) -> Iterator[Path]:
    yield from (file for pattern in ("*.jsonl", "*.jsonl.gz") for file in folder.rglob(pattern))


def _natural(path: Path) -> list[Any]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _source(file: Path) -> Source:
    folder = file.resolve().parent
    if folder.name in _KINDS:
        return Source(file, folder.parent.name, folder.name)
    return Source(file, folder.name, "")


def pack(records: Iterable[tuple[Source, Record]], texts: TokenTexts) -> PageData:
    """Pack episodes one by one; the palette of `texts` is whole afterwards."""
    data = PageData()
    runs, tags, ends = _Numbers(data.runs), _Numbers(data.tags), _Numbers(data.ends)
    block: list[dict[str, Any]] = []
    for source, record in records:
        t = record.trajectory
        name = source.run if source.kind in ("", "rollouts") else f"{source.run} · {source.kind}"
        row = (
            runs(name),
            record.step,
            tags(t.tag),
            t.group,
            t.member,
            t.seed,
            _STATUS[t.status],
            ends(t.end_reason),
            int(t.usable and t.metrics.get("success", 0.0) > 0),
            round(t.episode_return, 4),
            t.num_turns,
            len(t.token_ids),
        )
        for column, value in zip(_COLUMNS, row, strict=True):
            data.columns[column].append(value)
        _collect_boards(data, t)
        block.append(_episode(record, texts))
        if len(block) == BLOCK:
            data.blocks.append(compress(block))
            block = []
    if block:
        data.blocks.append(compress(block))
    return data


def records_of(sources: Sequence[Source]) -> Iterator[tuple[Source, Record]]:
    """The episodes of all sources, in order. Raises RecordError."""
    for source in sources:
        for record in read_records(source.path):
            yield source, record


def compress(value: Any) -> str:
    """Base64 of the gzipped JSON of a value."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(text, 6, mtime=0)).decode()


def _episode(record: Record, texts: TokenTexts) -> dict[str, Any]:
    t = record.trajectory
    packed: dict[str, Any] = {
        "t": texts.numbers(t.token_ids.tolist()),
        "r": _runs(t),
        "c": (np.flatnonzero(np.diff(t.context_starts)) + 1).tolist(),
        "l": (-1000 * t.log_probs[t.policy_mask].astype(np.float64)).round().astype(int).tolist(),
        "k": [
            [turn.observation, turn.reply, list(turn.actions), round(turn.reward, 6), turn.format_penalty, turn.notes]
            for turn in t.turns
        ],
        "f": t.final_observation,
        "u": t.luck,
        "v": list(t.model_version),
        "m": {name: round(value, 4) for name, value in t.metrics.items()},
    }
    if record.advantages is not None:
        packed["a"] = (1000 * record.advantages.astype(np.float64)).round().astype(int).tolist()
    return packed


def _runs(t: Trajectory) -> list[list[int]]:
    """[turn, written by the policy, tokens] of each run of tokens."""
    if not len(t.token_ids):
        return []
    changes = (np.diff(t.turn_ids) != 0) | (np.diff(t.policy_mask.astype(np.int8)) != 0)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    lengths = np.diff(np.append(starts, len(t.token_ids)))
    return [
        [int(t.turn_ids[start]), int(t.policy_mask[start]), int(length)]
        for start, length in zip(starts, lengths, strict=True)
    ]


def _collect_boards(data: PageData, t: Trajectory) -> None:
    samples = data.samples.setdefault(t.tag, [])
    if len(samples) < SAMPLES and t.usable:
        samples.append(t)
    known = data.symbols.setdefault(t.tag, set())
    for observation in (*(turn.observation for turn in t.turns), t.final_observation or ""):
        known.update("".join(board_rows(observation)))


class _Numbers:
    """Numbers names in the order of their first use."""

    def __init__(self, names: list[str]):
        self._names, self._numbers = names, {}

    def __call__(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        return self._numbers[name]
