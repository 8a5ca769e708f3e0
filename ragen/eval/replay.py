"""Plays recorded episodes again and says where the record and the environment disagree.

    python -m ragen.eval.replay RUN/rollouts/3.jsonl
    python -m ragen.eval.replay rollouts.jsonl --config-name _2_sokoban
    python -m ragen.eval.replay rollouts.jsonl --envs my_envs.yaml

Every episode is reset with its recorded seed and luck. Where the run's settings are known (its `config.yaml` lies in a
folder above the file, or `--config-name`) each *reply* is parsed and played as the rollout did, so that actions,
penalties and validity are checked as well. With environments alone (`--envs`, or config/envs.yaml when nothing else is
found) the recorded *actions* are played.

Exit status: 0 all agree, 1 something does not, 2 nothing could be replayed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tqdm import tqdm
from yaml import YAMLError

from ragen.config.compose import CONFIG_DIR, load
from ragen.config.errors import ConfigError
from ragen.env.errors import EnvConfigError, MissingDependency
from ragen.env.isolation import EnvClient, EnvError, EnvPool
from ragen.env.registry import EnvSpec, load_env_class, load_specs
from ragen.eval.records import Record, RecordError, read_records
from ragen.llm_agent.ctx_manager import ContextConfig, ParsedReply
from ragen.llm_agent.es_manager import Episode, EpisodeTask
from ragen.llm_agent.replies import reply_format
from ragen.llm_agent.trajectory import Trajectory, Turn
from ragen.trainer.settings import composed_context_config

__all__ = ["Mismatch", "ReplayError", "ReplaySettings", "Replayer", "Report", "replay_file", "settings_for"]

#: Episodes replayed at once, where an environment's own limit is not lower.
CONCURRENCY = 16
#: End reasons that the environment or the action budget decides; the others are limits of the rollout.
_DECIDED = ("terminated", "env_truncated", "max_actions")
#: Metrics that the actions alone decide; the others need the replies.
_OF_ACTIONS = ("success", "num_actions", "action_is_effective")
_OF_REPLIES = (*_OF_ACTIONS, "action_is_valid", "format_faults")


class ReplayError(ValueError):
    """The replay cannot begin; the message says what is missing."""


@dataclass(frozen=True)
class Mismatch:
    """One value of the record that the environment does not confirm."""

    line: int
    tag: str
    seed: int
    member: int
    turn: int | None
    """From 0; None: a value of the whole episode."""
    what: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        where = "" if self.turn is None else f" turn {self.turn}"
        return (
            f"line {self.line} {self.tag} seed {self.seed} member {self.member}{where} {self.what}: "
            f"recorded {self.recorded!r}, replayed {self.replayed!r}"
        )


@dataclass
class Report:
    """What a replay found."""

    episodes: int = 0
    turns: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason → episodes that could not be replayed."""
    mismatches: list[Mismatch] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """0, 1 or 2, as the module's text says."""
        return 1 if self.mismatches else 0 if self.episodes else 2

    def summary(self) -> str:
        """One line."""
        skipped = "".join(f"; not replayed: {count} ({reason})" for reason, count in sorted(self.skipped.items()))
        lines = len({mismatch.line for mismatch in self.mismatches})
        found = f"{len(self.mismatches)} mismatches in {lines} episodes" if self.mismatches else "no mismatch"
        return f"{self.episodes} episodes and {self.turns} turns replayed: {found}{skipped}"


@dataclass(frozen=True)
class ReplaySettings:
    """What a replay needs to know of the run."""

    specs: Mapping[str, EnvSpec]
    source: str
    """Where they are from, for people."""
    context: ContextConfig | None = None
    """How replies were parsed; None: the recorded actions are played."""
    format_penalty: float = 0.0

    @classmethod
    def from_config(cls, cfg: Any, source: str) -> ReplaySettings:
        """Settings of a composed config or of a run's `config.yaml`."""
        return cls(
            load_specs(cfg.custom_envs), source, composed_context_config(cfg), float(cfg.es_manager.format_penalty)
        )


def settings_for(
    path: Path, *, config_name: str | None = None, config_dir: str | None = None, envs: Path | None = None
) -> ReplaySettings:
    """The settings of a file of records: as named, else its run's `config.yaml`, else config/envs.yaml.

    Raises:
        ReplayError: a config or environments file that cannot be read.
    """
    try:
        if envs is not None:
            return _settings_from_envs(envs)
        if config_name is not None:
            return ReplaySettings.from_config(load(config_name, (), config_dir), f"config {config_name}")
        run = run_config(path)
        if run is not None:
            return ReplaySettings.from_config(OmegaConf.load(run), str(run))
        return _settings_from_envs(CONFIG_DIR / "envs.yaml")
    except (ConfigError, EnvConfigError, OmegaConfBaseException, YAMLError, OSError) as error:
        raise ReplayError(f"{envs or config_name or path}: no environments to replay in: {error}") from error


def run_config(path: Path) -> Path | None:
    """The run's `config.yaml`: in the file's folder or up to two above."""
    for folder in itertools.islice(path.resolve().parents, 3):
        candidate = folder / "config.yaml"
        if candidate.is_file() and "custom_envs" in candidate.read_text(encoding="utf-8"):
            return candidate
    return None


def _settings_from_envs(path: Path) -> ReplaySettings:
    node = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    if not isinstance(node, dict) or not isinstance(node.get("custom_envs"), dict):
        raise ReplayError(f"{path}: holds no custom_envs; give a file like config/envs.yaml")
    return ReplaySettings(load_specs(node["custom_envs"]), str(path))


class Replayer:
    """Replays records, each in an environment of its tag. Close it, or use it as a context manager."""

    def __init__(self, settings: ReplaySettings):
        self.settings = settings
        self._pools: dict[str, EnvPool] = {}
        self._unbuildable: dict[str, str] = {}

    def __enter__(self) -> Replayer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End every environment. Safe to call twice."""
        for pool in self._pools.values():
            pool.close()

    def run(self, records: Iterable[Record], report: Report | None = None) -> Iterator[tuple[Record, Report]]:
        """Replay records in order; yields each with the report so far. A few are played at once."""
        report = report if report is not None else Report()
        for chunk in _chunks(records, CONCURRENCY):
            results = asyncio.run(self._chunk(chunk))
            for record, result in zip(chunk, results, strict=True):
                if isinstance(result, str):
                    report.skipped[result] += 1
                else:
                    report.episodes += 1
                    report.turns += record.trajectory.num_turns
                    report.mismatches.extend(result)
                yield record, report

    async def _chunk(self, records: Sequence[Record]) -> list[list[Mismatch] | str]:
        return list(await asyncio.gather(*(self._one(record) for record in records)))

    async def _one(self, record: Record) -> list[Mismatch] | str:
        """The record's mismatches, or why it cannot be replayed."""
        trajectory = record.trajectory
        if not trajectory.usable:
            return "failed episodes"
        if trajectory.luck is None:
            return "no luck recorded, as before schema version 2"
        if trajectory.tag not in self.settings.specs:
            return f"{self.settings.source} has no tag {trajectory.tag}"
        pool = self._pool(trajectory.tag)
        if pool is None:
            return self._unbuildable[trajectory.tag]
        comparison = _Comparison(record)
        try:
            async with pool.lease() as client:
                await self.play(client, comparison)
        except EnvError as error:
            comparison.add(None, "environment", "an episode", str(error).strip().splitlines()[0])
        return comparison.mismatches

    def _pool(self, tag: str) -> EnvPool | None:
        if tag not in self._pools and tag not in self._unbuildable:
            spec = self.settings.specs[tag]
            try:
                module = load_env_class(spec.env_type).__module__
            except (EnvConfigError, MissingDependency) as error:
                self._unbuildable[tag] = f"{tag}: {error}"
                return None
            self._pools[tag] = EnvPool(
                spec.make,
                tag=tag,
                isolate=spec.isolate,
                workers=min(spec.max_workers or CONCURRENCY, CONCURRENCY),
                timeout_s=spec.step_timeout_s,
                preload=[module],
            )
        return self._pools.get(tag)

    async def play(self, client: EnvClient, comparison: _Comparison) -> None:
        """One episode against its record, up to the first observation that differs."""
        trajectory = comparison.trajectory
        task = EpisodeTask(trajectory.tag, trajectory.group, trajectory.member, trajectory.seed)
        spec, context = self.settings.specs[trajectory.tag], self.settings.context
        episode = Episode(task, spec, client, trajectory.luck, self.settings.format_penalty)
        await episode.start()
        outcome, replayed = None, 0.0
        for k, turn in enumerate(trajectory.turns):
            if not comparison.equal(k, "observation", turn.observation, episode.observation):
                return  # what follows is another episode
            if outcome is not None and outcome.end_reason is not None:
                comparison.add(k, "turn", "played", f"the episode had ended ({outcome.end_reason})")
                return
            reply = ParsedReply(turn.actions, True) if context is None else parse_recorded(turn, context)
            limit = len(turn.actions) if context is None else context.max_actions_per_turn
            outcome = await episode.step(reply, limit)
            comparison.equal(k, "actions", turn.actions, outcome.executed)
            penalty = turn.format_penalty if context is None else outcome.penalty
            comparison.equal(k, "format_penalty", turn.format_penalty, penalty)
            comparison.equal(k, "reward", turn.reward, outcome.env_reward + penalty)
            comparison.equal(k, "turn_rewards", float(trajectory.turn_rewards[k]), outcome.env_reward + penalty)
            replayed += outcome.env_reward + penalty
        comparison.equal(None, "return", comparison.stated_return, replayed)
        comparison.end(episode, outcome.end_reason, _OF_ACTIONS if context is None else _OF_REPLIES)


def parse_recorded(turn: Turn, context: ContextConfig) -> ParsedReply:
    """What a recorded reply asks for.

    Two things about a reply are the tokenizer's business, which a replay does without: whether the chat template itself
    opened the thought, so that the recorded text lacks its tag, and whether the text ends with an end token, which
    counts for formats that take the whole reply. So every reading is tried, and the first one that holds the recorded
    actions is taken; where none does, the text as it stands.
    """
    read = reply_format(context.parser).parse
    texts = (turn.reply, re.sub(r"<[^<>\s]+>$", "", turn.reply))
    readings = [read(opened + text, context) for opened in ("", f"<{context.think_tag}>") for text in texts]
    return next((reading for reading in readings if _holds(reading.actions, turn.actions)), readings[0])


def _holds(said: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether `wanted` occur among `said` in their order, whatever their case; none are held by none alone."""
    rest = iter([text.lower() for text in said])
    return all(text.lower() in rest for text in wanted) and (bool(wanted) or not said)


class _Comparison:
    """Collects the mismatches of one record."""

    def __init__(self, record: Record):
        self.trajectory: Trajectory = record.trajectory
        self.stated_return = record.stated_return
        self._line = record.line
        self.mismatches: list[Mismatch] = []

    def add(self, turn: int | None, what: str, recorded: Any, replayed: Any) -> None:
        t = self.trajectory
        self.mismatches.append(Mismatch(self._line, t.tag, t.seed, t.member, turn, what, recorded, replayed))

    def equal(self, turn: int | None, what: str, recorded: Any, replayed: Any) -> bool:
        number = isinstance(recorded, float)
        same = math.isclose(recorded, replayed, rel_tol=1e-9, abs_tol=1e-9) if number else recorded == replayed
        if not same:
            self.add(turn, what, recorded, replayed)
        return same

    def end(self, episode: Episode, end_reason: str | None, metrics: Sequence[str]) -> None:
        """The values of the whole episode."""
        trajectory, replayed = self.trajectory, episode.metrics()
        if trajectory.final_observation is not None:
            self.equal(None, "final_observation", trajectory.final_observation, episode.observation)
        recorded_end = trajectory.end_reason if trajectory.end_reason in _DECIDED else None
        if self.equal(None, "end_reason", recorded_end, end_reason):
            status = "finished" if end_reason == "terminated" else "truncated"
            self.equal(None, "status", trajectory.status, status)
        for name in metrics:
            if name in trajectory.metrics:
                self.equal(None, f"metrics.{name}", trajectory.metrics[name], replayed[name])


def _chunks(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    iterator = iter(records)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def replay_file(path: Path, settings: ReplaySettings, *, progress: bool = False) -> Report:
    """Replay one file. Raises RecordError for a line that is no record."""
    report = Report()
    bar = tqdm(desc=path.name, unit="ep", leave=False, disable=not progress)
    with Replayer(settings) as replayer, bar:
        for _ in replayer.run(read_records(path), report):
            bar.update()
    return report


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m ragen.eval.replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="rollouts.jsonl, or .jsonl.gz")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--config-name", help="a config: its environments and its reply format")
    source.add_argument("--envs", type=Path, help="a file like config/envs.yaml: its environments alone")
    parser.add_argument("--config-dir", help="a folder of configs of your own, for --config-name")
    parser.add_argument("--show", type=int, default=20, help="most mismatches printed for a file (default 20)")
    options = parser.parse_args(argv)
    status = 0
    for path in options.files:
        try:
            settings = settings_for(
                path, config_name=options.config_name, config_dir=options.config_dir, envs=options.envs
            )
            report = replay_file(path, settings, progress=sys.stderr.isatty())
        except (ReplayError, RecordError) as error:
            print(error, file=sys.stderr)
            status = max(status, 2)
            continue
        for mismatch in report.mismatches[: options.show]:
            print(f"{path} {mismatch}")
        if len(report.mismatches) > options.show:
            print(f"… {len(report.mismatches) - options.show} more (--show)")
        played = "actions" if settings.context is None else "replies"
        print(f"{path}: {report.summary()} ({played} played in the environments of {settings.source})")
        status = max(status, report.exit_status)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
