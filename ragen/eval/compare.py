"""Compares two evaluations episode by episode: the paired difference with its 95 % interval.

    python -m ragen.eval.compare BEFORE AFTER

BEFORE and AFTER are files of episodes, or folders that hold one `rollouts.jsonl` (or .gz), such as an evaluation's.
Both must have played the same panel: the same (tag, seed, member) with the same luck. Anything else is refused, with
what differs. Episodes that failed count as not solved; they have no return, so that pair is left out of its difference.
Members of one group share their start, so the interval counts each start once (`ragen.eval.statistics.mean_interval`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ragen.eval.records import RecordError, read_records
from ragen.eval.statistics import paired_difference
from ragen.llm_agent.trajectory import Trajectory

__all__ = ["Difference", "PanelError", "compare", "load_panel"]

Key = tuple[str, int, int]


class PanelError(ValueError):
    """The two sides are no two evaluations of one panel; the message says what differs."""


@dataclass(frozen=True)
class Played:
    """What a comparison needs of one episode."""

    success: float
    """1 solved, 0 not."""
    episode_return: float | None
    """None: the episode failed."""
    turns: float | None
    luck: int | None
    tokens: bytes
    """Digest of all token ids, read and written."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> Played:
        """Read it off a trajectory."""
        tokens = hashlib.blake2b(trajectory.token_ids.tobytes(), digest_size=16).digest()
        if not trajectory.usable:
            return cls(0.0, None, None, trajectory.luck, tokens)
        solved = float(trajectory.metrics.get("success", 0.0) > 0)
        return cls(solved, trajectory.episode_return, float(trajectory.num_turns), trajectory.luck, tokens)


@dataclass(frozen=True)
class Panel:
    """One side of a comparison."""

    source: str
    episodes: dict[Key, Played]
    """(tag, seed, member) → what was played, in the file's order."""
    panel_hash: str | None = None
    """As `summary.json` beside the episodes says it."""


@dataclass(frozen=True)
class Difference:
    """after - before of one tag and one measure."""

    tag: str
    measure: str
    pairs: int
    before: float
    after: float
    difference: float
    low: float
    high: float
    only_before: int | None = None
    """success: episodes that only `before` solved."""
    only_after: int | None = None
    """success: episodes that only `after` solved."""
    identical: int | None = None
    """success: episodes with the same token ids on both sides."""


def load_panel(path: Path) -> Panel:
    """Read one side.

    Raises:
        PanelError: no episodes there, or an episode that occurs twice.
        RecordError: a line that is no record.
    """
    file = _episodes_file(path)
    episodes: dict[Key, Played] = {}
    for record in read_records(file):
        t = record.trajectory
        key = (t.tag, t.seed, t.member)
        if key in episodes:
            raise PanelError(
                f"{file}:{record.line}: {t.tag} seed {t.seed} member {t.member} occurs twice; a panel holds each "
                "episode once: name the file of one evaluation, not several steps together"
            )
        episodes[key] = Played.of(t)
    if not episodes:
        raise PanelError(f"{file}: holds no episode")
    return Panel(str(path), episodes, _panel_hash(file.parent / "summary.json") if path.is_dir() else None)


def _episodes_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = [path / name for name in ("rollouts.jsonl", "rollouts.jsonl.gz") if (path / name).is_file()]
    if len(found) != 1:
        raise PanelError(f"{path}: holds {'two' if found else 'no'} rollouts.jsonl(.gz); name a file of episodes")
    return found[0]


def _panel_hash(summary: Path) -> str | None:
    """`panel.hash` or `panel_hash` of a summary, None where there is none."""
    try:
        node = json.loads(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    panel = node.get("panel")
    value = panel.get("hash") if isinstance(panel, dict) else node.get("panel_hash")
    return str(value) if value is not None else None


def compare(before: Panel, after: Panel) -> list[Difference]:
    """Success, return and turns, for each tag and then for all tags together (`all`, where there are several).

    Raises:
        PanelError: another panel, other luck, or fewer than two starts.
    """
    _same_panel(before, after)
    keys = list(before.episodes)
    tags = list(dict.fromkeys(tag for tag, _, _ in keys))
    rows = [row for tag in tags for row in _rows(tag, [key for key in keys if key[0] == tag], before, after)]
    return rows + (_rows("all", keys, before, after) if len(tags) > 1 else [])


def _same_panel(before: Panel, after: Panel) -> None:
    a, b = before.episodes, after.episodes
    if None not in (before.panel_hash, after.panel_hash) and before.panel_hash != after.panel_hash:
        raise PanelError(
            f"different panels: {before.source} played panel {before.panel_hash}, {after.source} {after.panel_hash}"
        )
    for one, other, here, there in ((a, b, before, after), (b, a, after, before)):
        missing = [key for key in one if key not in other]
        if missing:
            tag, seed, member = missing[0]
            raise PanelError(
                f"different panels: {len(missing)} of the {len(one)} episodes of {here.source} are not in "
                f"{there.source}, the first is {tag} seed {seed} member {member}"
            )
    for (tag, seed, member), played in a.items():
        luck = (played.luck, b[tag, seed, member].luck)
        if None not in luck and luck[0] != luck[1]:
            raise PanelError(
                f"different panels: {tag} seed {seed} member {member} was played with luck {luck[0]} in "
                f"{before.source} and {luck[1]} in {after.source}; evaluate both with the same seed"
            )


def _rows(tag: str, keys: list[Key], before: Panel, after: Panel) -> list[Difference]:
    rows = []
    for measure, name in (("success", "success"), ("return", "episode_return"), ("turns", "turns")):
        pairs = [(key, getattr(before.episodes[key], name), getattr(after.episodes[key], name)) for key in keys]
        pairs = [pair for pair in pairs if None not in pair]
        if len({key[:2] for key, _, _ in pairs}) < 2:
            if measure == "success":
                raise PanelError(f"{tag}: one start is too few for an interval")
            continue
        x, y = [a for _, a, _ in pairs], [b for _, _, b in pairs]
        mean, low, high = paired_difference(x, y, [key[:2] for key, _, _ in pairs])
        counts: dict[str, Any] = {}
        if measure == "success":
            counts = {
                "only_before": sum(a > b for a, b in zip(x, y, strict=True)),
                "only_after": sum(b > a for a, b in zip(x, y, strict=True)),
                "identical": sum(before.episodes[key].tokens == after.episodes[key].tokens for key, _, _ in pairs),
            }
        rows.append(Difference(tag, measure, len(pairs), sum(x) / len(x), sum(y) / len(y), mean, low, high, **counts))
    return rows


def table(rows: Sequence[Difference]) -> str:
    """The rows as a Markdown table; success in percent and points."""
    lines = [
        "| tag | measure | pairs | before | after | difference | 95 % interval | only before | only after |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        scale, unit = (100, " %") if row.measure == "success" else (1, "")
        counts = [str(count) if count is not None else "" for count in (row.only_before, row.only_after)]
        values = (scale * value for value in (row.before, row.after, row.difference, row.low, row.high))
        before, after, difference, low, high = values
        digits = 1 if unit else 3
        lines.append(
            f"| {row.tag} | {row.measure} | {row.pairs} | {before:.{digits}f}{unit} | {after:.{digits}f}{unit} | "
            f"{difference:+.{digits}f} | [{low:+.{digits}f}, {high:+.{digits}f}] | {' | '.join(counts)} |"
        )
    return "\n".join(lines)


def identical(rows: Sequence[Difference]) -> str:
    """How many episodes are the same on both sides, token by token, over all tags."""
    whole = [row for row in rows if row.measure == "success"][-1]
    return f"token-identical: {whole.identical} of {whole.pairs} episodes"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 2: the two sides cannot be compared."""
    parser = argparse.ArgumentParser(
        prog="python -m ragen.eval.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="a file of episodes, or a folder with a rollouts.jsonl")
    parser.add_argument("after", type=Path)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args(argv)
    try:
        rows = compare(load_panel(options.before), load_panel(options.after))
    except (PanelError, RecordError) as error:
        print(error, file=sys.stderr)
        return 2
    print(
        json.dumps([asdict(row) for row in rows], indent=2) if options.json else f"{table(rows)}\n\n{identical(rows)}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
