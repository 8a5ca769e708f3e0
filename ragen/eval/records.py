"""`rollouts.jsonl`: one `Trajectory` a line, checked against a schema; training and evaluation write it alike.

`EpisodeRecord` *is* the schema (docs/records.md says it in words). As JSON Schema, for other languages:

    python -m ragen.eval.records --schema

Files whose name ends in `.gz` are compressed. Reading and writing stream: one episode is in memory at a time.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from ragen.llm_agent.trajectory import READABLE_VERSIONS, SCHEMA_VERSION, Trajectory, TrajectoryError

__all__ = ["EpisodeRecord", "Record", "RecordError", "RecordWriter", "json_schema", "read_records", "write_records"]


class RecordError(ValueError):
    """A line that is no readable record; the message names file, line and fault."""


Whole = Annotated[int, Meta(ge=0)]


class TurnRecord(msgspec.Struct, forbid_unknown_fields=True):
    """What one turn said and did."""

    observation: Annotated[str, Meta(description="The environment's observation that the policy answered.")]
    reply: Annotated[str, Meta(description="The reply, decoded, special tokens kept.")]
    actions: Annotated[list[str], Meta(description="Names of the executed actions, in order.")]
    reward: Annotated[float, Meta(description="The environment's rewards of the turn plus its format penalty.")]
    format_penalty: Annotated[float, Meta(le=0, description="The part of `reward` that is a penalty.")] = 0.0
    notes: Annotated[list[str], Meta(description="What the parser or a limit changed.")] = []


class EpisodeRecord(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One episode. T: its tokens. K: its replies."""

    schema_version: Annotated[Literal[READABLE_VERSIONS], Meta(description="Version of this schema.")]
    step: Annotated[Whole | None, Meta(description="Training step that played the episode; null: no training.")] = None
    tag: Annotated[str, Meta(description="The entry of config/envs.yaml.")]
    group: Annotated[Whole, Meta(description="Number of the group; its members start from the same state.")]
    member: Annotated[Whole, Meta(description="Number of the episode within its group.")]
    seed: Annotated[Whole, Meta(description="Environment seed of the group.")]
    luck: Annotated[Whole | None, Meta(description="The member's own luck: `reset(seed, luck=luck)`. From 2.")] = None
    status: Annotated[
        Literal["finished", "truncated", "failed"],
        Meta(description="finished: the task ended. truncated: a limit ended it. failed: no score, no training."),
    ]
    end_reason: Annotated[
        str, Meta(description="terminated, env_truncated, max_turn, max_actions, context; or what failed.")
    ]
    metrics: Annotated[dict[str, float], Meta(description="success, num_actions, action_is_valid, …")]
    model_version: Annotated[
        tuple[int, int], Meta(description="Least and greatest weight version that sampled the episode.")
    ]
    turns: Annotated[list[TurnRecord], Meta(description="K turns as text.")]
    final_observation: Annotated[str | None, Meta(description="What the last action led to. From 2.")] = None
    turn_rewards: Annotated[list[float], Meta(description="K rewards, the same as in `turns`.")]
    episode_return: float = msgspec.field(name="return")
    """The sum of `turn_rewards`."""
    context_starts: Annotated[
        list[Whole] | None,
        Meta(description="K: index of the token at which the context of each reply begins. From 3; before, all 0."),
    ] = None
    token_ids: Annotated[list[Whole], Meta(description="T ids: everything that the policy read and wrote.")]
    policy_mask: Annotated[list[Literal[0, 1]], Meta(description="T: 1 where the policy sampled the token.")]
    turn_ids: Annotated[list[Whole], Meta(description="T: the turn that read or wrote the token.")]
    log_probs: Annotated[
        list[float], Meta(description="T natural logs: the sampler's log-probability; 0 where it did not sample.")
    ]
    advantages: Annotated[
        list[float] | None, Meta(description="T advantages as the update saw them; null: not recorded. From 2.")
    ] = None


@dataclass(frozen=True, eq=False)
class Record:
    """One line of a file."""

    line: int
    """Its number, from 1."""
    trajectory: Trajectory
    step: int | None = None
    """The training step that played it."""
    advantages: np.ndarray | None = None
    """(T,) float32, or None where they were not recorded."""
    stated_return: float | None = None
    """The line's own `return`; the trajectory computes its own from the turns' rewards."""


class RecordWriter:
    """Writes a file line by line; a context manager.

    The file appears under its name when the writer closes without an error, whole or not at all; with `append` it
    grows in place instead, so that what a stopped evaluation has done is kept.

    Args:
        path: `….jsonl` or `….jsonl.gz`; missing folders are made.
        append: go on with an existing file; a last line that a crash cut is taken off first.

    Raises:
        ValueError: `append` to a compressed file.
    """

    def __init__(self, path: str | os.PathLike, *, append: bool = False):
        self.path = Path(path)
        if append and self.path.suffix == ".gz":
            raise ValueError(f"{self.path}: a compressed file cannot be continued; write .jsonl and compress it later")
        self._target = self.path if append else self.path.with_name(f".{self.path.name}.{os.getpid()}")
        self._append = append
        self._file: IO[bytes] | None = None

    def __enter__(self) -> RecordWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._append:
            _drop_cut_line(self.path)
        # fixed mtime: the same episodes give the same bytes
        compressed = self.path.suffix == ".gz"
        mode = "ab" if self._append else "wb"
        self._file = gzip.GzipFile(self._target, mode, mtime=0) if compressed else self._target.open(mode)
        return self

    def write(
        self, trajectory: Trajectory, *, step: int | None = None, advantages: Sequence[float] | None = None
    ) -> None:
        """Write one episode.

        Args:
            trajectory: the episode.
            step: training step that played it.
            advantages: (T,) as the update saw them.

        Raises:
            RecordError: `advantages` of another length.
        """
        record: dict[str, Any] = {"step": step, **trajectory.to_json()}
        if advantages is not None:
            record["advantages"] = [float(value) for value in advantages]
            _check_advantages(record, str(self.path))
        self._file.write(msgspec.json.encode(record) + b"\n")
        if self._append:
            self._file.flush()

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._file.close()
        if self._append:
            return
        if kind is None:
            os.replace(self._target, self.path)
        else:
            self._target.unlink(missing_ok=True)


def write_records(path: str | os.PathLike, trajectories: Iterable[Trajectory], *, step: int | None = None) -> None:
    """Write one file of episodes, whole or not at all."""
    with RecordWriter(path) as writer:
        for trajectory in trajectories:
            writer.write(trajectory, step=step)


def read_records(path: str | os.PathLike) -> Iterator[Record]:
    """Read a file, one episode at a time; each line is checked against the schema and against `Trajectory.validate`.

    Raises:
        RecordError: no such file, a line that is no JSON (a crash cuts the last one), another schema version, a missing
            or unknown field, a value of the wrong kind, or a broken invariant of the trajectory.
    """
    try:
        with _open(Path(path)) as file:
            for number, line in enumerate(file, start=1):
                yield _record(line, number, f"{path}:{number}")
    except (gzip.BadGzipFile, EOFError) as error:
        raise RecordError(f"{path}: no whole gzip file: {error}") from error
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from error


def holds_records(path: str | os.PathLike) -> bool:
    """Whether the file's first line looks like an episode: a run's folder holds other `.jsonl` files too."""
    try:
        with _open(Path(path)) as file:
            first = json.loads(next(iter(file)))
    except (OSError, EOFError, StopIteration, ValueError):
        return False
    return isinstance(first, dict) and "schema_version" in first and "token_ids" in first


def json_schema() -> dict[str, Any]:
    """The schema of one line as JSON Schema (draft 2020-12)."""
    return msgspec.json.schema(EpisodeRecord)


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _record(line: bytes, number: int, where: str) -> Record:
    try:
        record = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        cut = "" if line.endswith(b"\n") else " (the last line: writing was cut off; delete it)"
        raise RecordError(f"{where}: no JSON{cut}: {error}") from error
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version not in READABLE_VERSIONS:
        raise RecordError(
            f"{where}: schema_version {version!r} cannot be read; this release writes {SCHEMA_VERSION} and reads "
            f"{', '.join(map(str, READABLE_VERSIONS))}"
        )
    try:
        msgspec.convert(record, EpisodeRecord)
    except msgspec.ValidationError as error:
        raise RecordError(f"{where}: {error}") from error
    _check_advantages(record, where)
    step, advantages, stated = record.pop("step", None), record.pop("advantages", None), record["return"]
    try:
        trajectory = Trajectory.from_json(record)
    except TrajectoryError as error:
        raise RecordError(f"{where}: {error}") from error
    return Record(number, trajectory, step, None if advantages is None else np.asarray(advantages, np.float32), stated)


def _check_advantages(record: dict[str, Any], where: str) -> None:
    advantages = record.get("advantages")
    if advantages is not None and len(advantages) != len(record["token_ids"]):
        raise RecordError(f"{where}: {len(advantages)} advantages for {len(record['token_ids'])} tokens")


def _drop_cut_line(path: Path) -> None:
    """Cut what follows the last newline."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        size = position = file.seek(0, io.SEEK_END)
        while position:
            block = min(position, 1 << 16)
            position -= block
            file.seek(position)
            newline = file.read(block).rfind(b"\n")
            if newline >= 0:
                position += newline + 1
                break
        if position < size:
            file.truncate(position)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: check files, or print the schema."""
    parser = argparse.ArgumentParser(prog="python -m ragen.eval.records", description="Check files of episodes.")
    parser.add_argument("files", nargs="*", type=Path, help="rollouts.jsonl, or .jsonl.gz")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of one line")
    options = parser.parse_args(argv)
    if options.schema:
        print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
        return 0
    if not options.files:
        parser.error("name a file to check, or --schema")
    faulty = 0
    for path in options.files:
        try:
            count = sum(1 for _ in read_records(path))
            print(f"{path}: {count} episodes, sound")
        except RecordError as error:
            faulty += 1
            print(error, file=sys.stderr)
    return int(faulty > 0)


if __name__ == "__main__":
    raise SystemExit(main())
