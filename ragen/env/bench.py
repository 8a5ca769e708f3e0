"""How fast environments are: resets and steps a second, and Sokoban's levels beside gym-sokoban's own generator.

    python -m ragen.env.bench                        every tag of envs.yaml whose packages are installed
    python -m ragen.env.bench SimpleSokoban Bandit   these alone
    python -m ragen.env.bench --levels 5000 --json   verify more levels; everything as JSON

`new level` resets to a seed that was not played before, `same level` to one that another member of the group has just
started, `steps` are random actions. The Sokoban part makes levels with both generators, and solves ours: exit status 1
where a level cannot be solved within its budget or ours are the slower ones; 2 where the command names no such tag.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from ragen.env.base import Env, level_stream
from ragen.env.check import read_config
from ragen.env.errors import EnvConfigError, MissingDependency, nearest
from ragen.env.isolation_server import look_up
from ragen.env.registry import EnvSpec, load_specs
from ragen.env.sokoban.config import SokobanConfig
from ragen.env.sokoban.gym_levels import private_module
from ragen.env.sokoban.levels import make_level
from ragen.env.sokoban.solver import shortest_solution

_FIRST_SEED = 1_000_000
#: The sizes compared: what SimpleSokoban and LargerSokoban play, each within ten moves.
SOKOBAN = {
    "6x6, 1 box": SokobanConfig(num_boxes=1, solvable_within=10),
    "8x8, 2 boxes": SokobanConfig(dim_x=8, dim_y=8, num_boxes=2, search_depth=10, solvable_within=10),
}


@dataclass(frozen=True)
class Speed:
    """One environment, in calls a second."""

    tag: str
    isolate: str
    build_ms: float
    new_level_per_s: float
    same_level_per_s: float
    steps_per_s: float


@dataclass(frozen=True)
class Levels:
    """One size of Sokoban, in milliseconds of processor time a level."""

    size: str
    ours_ms: float
    gym_sokoban_ms: float
    made: int
    solvable: int
    """Levels of ours that a shortest solution solves within the budget."""
    budget: int
    mean_moves: float
    longest_moves: int

    @property
    def sound(self) -> bool:
        return self.solvable == self.made and self.ours_ms <= self.gym_sokoban_ms


def measure(spec: EnvSpec, seconds: float) -> Speed:
    """Time one tag, `seconds` for each kind of call. Raises what the environment raises."""
    started = time.perf_counter()
    env = spec.make()
    build_ms = 1e3 * (time.perf_counter() - started)
    first = _FIRST_SEED + 100_000 * (zlib.crc32(spec.tag.encode()) % 10_000)  # no level that another tag has made
    seeds = iter(range(first, first + 2**31))
    members = iter(range(2**31))
    try:
        env.reset(next(seeds))  # what is loaded once is loaded now
        return Speed(
            tag=spec.tag,
            isolate=spec.isolate,
            build_ms=build_ms,
            new_level_per_s=_rate(lambda: env.reset(next(seeds)), seconds),
            same_level_per_s=_rate(lambda: env.reset(first, luck=next(members)), seconds),
            steps_per_s=_rate_of_steps(env, seeds, seconds),
        )
    finally:
        env.close()


def _rate(call: Callable[[], Any], seconds: float) -> float:
    """Calls a second: the median over the calls, so that what else the machine does counts little."""
    took, until = [], time.perf_counter() + seconds
    while not took or time.perf_counter() < until:
        started = time.perf_counter()
        call()
        took.append(time.perf_counter() - started)
    return 1 / float(np.median(took))


def _rate_of_steps(env: Env, seeds: Iterator[int], seconds: float) -> float:
    """Random steps a second, resets and the drawing not counted; NaN where no action can be drawn."""
    took: list[float] = []
    over, rng, until = True, np.random.default_rng(0), time.perf_counter() + seconds
    while not took or time.perf_counter() < until:
        fresh = over
        if fresh:
            env.reset(next(seeds))
        name, lookup = env.random_action(rng), env.action_lookup()
        if name is None and fresh:
            return float("nan")
        if name is None:  # a dead end
            over = True
            continue
        value = name if lookup is None else look_up(name, lookup)
        started = time.perf_counter()
        result = env.step(value)
        took.append(time.perf_counter() - started)
        over = result[2] or result[3]
    return 1 / float(np.median(took))


def sokoban_levels(size: str, levels: int) -> Levels:
    """Make `levels` levels of one size and solve them; time both generators, each on a tenth of as many seeds."""
    config = SOKOBAN[size]
    moves = []
    for seed in tqdm(range(levels), desc=f"Sokoban {size}", unit="level", leave=False, disable=None):
        level = make_level(config, seed, level_stream(seed))
        solution = shortest_solution(*level)
        if solution is not None and len(solution) <= config.solvable_within:
            moves.append(len(solution))
    timed = range(max(20, levels // 10))
    return Levels(
        size=size,
        ours_ms=_cost_ms(lambda seed: make_level(config, seed, level_stream(seed)), timed),
        gym_sokoban_ms=_cost_ms(_original(config), timed),
        made=levels,
        solvable=len(moves),
        budget=config.solvable_within,
        mean_moves=float(np.mean(moves)) if moves else float("nan"),
        longest_moves=max(moves, default=0),
    )


def _original(config: SokobanConfig) -> Callable[[int], Any]:
    """gym-sokoban's generator at its own settings: a room for every seed, however long its solution."""
    module = private_module(0, 300)
    dim = (config.dim_x, config.dim_y)

    def generate(seed: int) -> Any:
        module.random.seed(seed)
        module.np.random.seed(seed)
        for _ in range(100):
            try:
                return module.generate_room(dim=dim, num_steps=int(1.7 * sum(dim)), num_boxes=config.num_boxes)
            except (RuntimeError, RuntimeWarning):
                continue  # as its own `reset` does: the next room
        raise RuntimeError(f"gym-sokoban made no room of {dim} in 100 tries")

    return generate


def _cost_ms(make: Callable[[int], Any], seeds: range) -> float:
    started = time.process_time()
    for seed in seeds:
        make(seed)
    return 1e3 * (time.process_time() - started) / len(seeds)


# --- the command line -------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    options = _parser().parse_args(argv)
    try:
        entries, _ = read_config(options.config_name, options.config_dir)
        unknown = [tag for tag in options.tags if tag not in entries]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no tag of custom_envs; {nearest(unknown[0], entries)}")
    except ValueError as error:
        print(f"ragen.env.bench: {error}", file=sys.stderr)
        return 2
    tags = options.tags or list(entries)
    speeds, left_out = [], {}
    for tag in tqdm(tags, unit="tag", leave=False, disable=None):
        try:
            speeds.append(measure(load_specs({tag: entries[tag]})[tag], options.seconds))
        except (MissingDependency, EnvConfigError, OSError) as error:
            left_out[tag] = str(error)
    sokoban = any(entries[tag].get("env_type") == "sokoban" for tag in tags)
    levels = [sokoban_levels(size, options.levels) for size in SOKOBAN] if sokoban and options.levels else []
    if options.json:
        found = {"speed": [asdict(s) for s in speeds], "left_out": left_out, "sokoban": [asdict(n) for n in levels]}
        print(json.dumps(found, indent=1))
    else:
        _print(speeds, left_out, levels)
    return 0 if all(row.sound for row in levels) else 1


def _print(speeds: Sequence[Speed], left_out: dict[str, str], levels: Sequence[Levels]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 110)
    columns = ("tag", "isolate", "build ms", "new levels/s", "same level/s", "steps/s")
    rows = [
        (s.tag, s.isolate, f"{s.build_ms:.1f}", *(f"{n:,.0f}" if n >= 10 else f"{n:.1f}" for n in
         (s.new_level_per_s, s.same_level_per_s, s.steps_per_s)))
        for s in speeds
    ]  # fmt: skip
    console.print(_table("environments, called in this process", columns, rows, text=2))
    for tag, why in left_out.items():
        console.print(f"left out: {tag}: {why}", markup=False, highlight=False)
    if levels:
        columns = ("Sokoban", "ours ms/level", "gym-sokoban", "levels", "solvable", "within", "mean moves", "longest")
        rows = [
            (n.size, f"{n.ours_ms:.2f}", f"{n.gym_sokoban_ms:.2f}", str(n.made), str(n.solvable), str(n.budget),
             f"{n.mean_moves:.1f}", str(n.longest_moves))
            for n in levels
        ]  # fmt: skip
        console.print(_table("levels of Sokoban, solved by our own solver", columns, rows, text=1))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, text: int) -> Table:
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1), collapse_padding=True)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ragen.env.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tags", nargs="*", metavar="TAG", help="tags of custom_envs (default: all)")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each kind of call (default %(default)s)")
    parser.add_argument("--levels", type=int, default=1000, help="levels of Sokoban to solve; 0: none (default 1000)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of tables")
    parser.add_argument("--config-name", default="base", help="the config that names the tags (default base)")
    parser.add_argument("--config-dir", help="a folder of configs of your own")
    return parser


if __name__ == "__main__":
    sys.exit(main())
