"""Re-scores recorded episodes with a function of yours.

    python -m ragen.eval.rescore rollouts.jsonl OUT.jsonl --function my_pkg.scores:shorter_is_better

The function takes a `Trajectory` and returns the new reward of each turn (K numbers), or one number: the new return,
which then sits on the last turn. Token columns stay as they are. Format penalties are part of the old rewards and are
set to zero: a function that wants them back reads them from `trajectory.turns`.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from pathlib import Path

import numpy as np

from ragen.eval.records import Record, RecordError, RecordWriter, read_records
from ragen.llm_agent.trajectory import Trajectory, TrajectoryError

__all__ = ["ScoreError", "rescore", "rescored"]

Score = Callable[[Trajectory], "float | Sequence[float]"]


class ScoreError(ValueError):
    """The function cannot be found, or returned no scores; the message names the episode."""


def rescore(trajectory: Trajectory, function: Score) -> Trajectory:
    """The same episode with other rewards.

    Raises:
        ScoreError: the function returned neither a number nor one for each turn.
    """
    scores = function(trajectory)
    where = f"{trajectory.tag} seed {trajectory.seed} member {trajectory.member}"
    if isinstance(scores, Real):
        rewards = np.zeros(trajectory.num_turns)
        rewards[-1:] = float(scores)
    else:
        try:
            rewards = np.asarray(scores, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ScoreError(f"{where}: the function returned {scores!r}, no number and no list of numbers") from error
    if rewards.shape != (trajectory.num_turns,):
        raise ScoreError(
            f"{where}: {trajectory.num_turns} turns need as many rewards, the function returned {scores!r}"
        )
    turns = tuple(
        dataclasses.replace(turn, reward=float(reward), format_penalty=0.0)
        for turn, reward in zip(trajectory.turns, rewards, strict=True)
    )
    try:
        return dataclasses.replace(trajectory, turn_rewards=rewards, turns=turns).validate()
    except TrajectoryError as error:  # nan or infinite
        raise ScoreError(str(error)) from error


def rescored(records: Iterable[Record], function: Score) -> Iterator[Record]:
    """Usable episodes with other rewards; failed ones, which have no score, as they are. Advantages are dropped."""
    for record in records:
        trajectory = record.trajectory
        new = rescore(trajectory, function) if trajectory.usable else trajectory
        yield Record(record.line, new, record.step, stated_return=new.episode_return)


def load_function(name: str) -> Score:
    """The function `package.module:name`; the working folder is on the path.

    Raises:
        ScoreError: no such module or function.
    """
    module_name, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ScoreError(f"--function {name!r}: {error}; write it as package.module:function") from error
    if not callable(function):
        raise ScoreError(f"--function {name!r} is no function")
    return function


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 2: nothing was written."""
    parser = argparse.ArgumentParser(
        prog="python -m ragen.eval.rescore", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="rollouts.jsonl, or .jsonl.gz")
    parser.add_argument("out", type=Path, help="the new file")
    parser.add_argument("--function", required=True, metavar="MODULE:NAME")
    options = parser.parse_args(argv)
    before = after = count = 0.0
    try:
        function = load_function(options.function)
        with RecordWriter(options.out) as writer:
            for old, new in _pairs(options.file, function):
                writer.write(new.trajectory, step=new.step)
                if new.trajectory.usable:
                    count += 1
                    before += old.trajectory.episode_return
                    after += new.trajectory.episode_return
    except (RecordError, ScoreError) as error:
        print(error, file=sys.stderr)
        return 2
    means = f", mean return {before / count:.3f} → {after / count:.3f}" if count else ""
    print(f"{options.out}: {count:.0f} usable episodes{means}")
    return 0


def _pairs(path: Path, function: Score) -> Iterator[tuple[Record, Record]]:
    for record in read_records(path):
        yield record, next(rescored([record], function))


if __name__ == "__main__":
    raise SystemExit(main())
