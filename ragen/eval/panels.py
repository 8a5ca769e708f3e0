"""Panels: which episodes an evaluation plays. A file of config/panels names tags and their starts:

    SimpleSokoban: {first_seed: 123, starts: 100}     # environment seeds 123 … 250
    FrozenLake: {seeds: [7, 9], sampling_seed: 5}     # or one by one; the sampling seed is 123 where none is given

The sampling seed is the root of an episode's luck and of the seed of each of its replies. An episode is solved where
its environment reported `success`; one that failed is not. The hash covers the episodes and the rules that they are
played by (each tag's `env_type`, `env_config` and `max_actions_per_traj`), not the wording of prompts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from ragen.config.compose import CONFIG_DIR
from ragen.config.errors import ConfigError, Fault, nearest
from ragen.config.to_verl import VAL_SEED, resolve_n_groups, resolve_seed
from ragen.llm_agent.es_manager import EpisodeTask
from ragen.llm_agent.trajectory import Trajectory

__all__ = ["SUCCESS", "Panel", "find_panel", "panel_names", "panel_of", "solved"]

#: Definition of success, part of each panel's hash.
SUCCESS = "metrics.success > 0: the environment reported success after an action; a failed episode is not solved"
_RULES = ("env_type", "env_config", "max_actions_per_traj")
_KEYS = ("first_seed", "starts", "seeds", "sampling_seed")


def solved(trajectory: Trajectory) -> bool:
    """`SUCCESS`, of one episode."""
    return trajectory.usable and trajectory.metrics.get("success", 0.0) > 0


@dataclass(frozen=True)
class Panel:
    """The episodes of an evaluation."""

    name: str
    starts: tuple[tuple[str, int, int], ...]
    """(tag, environment seed, sampling seed) of each start; the starts of one tag stand together."""
    n: int = 1
    """Episodes of each start."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, in order."""
        return tuple(dict.fromkeys(tag for tag, _, _ in self.starts))

    def tasks(self) -> dict[int, list[EpisodeTask]]:
        """Sampling seed → episodes."""
        tasks: dict[int, list[EpisodeTask]] = {}
        for row, (tag, seed, sampling_seed) in enumerate(self.starts):
            tasks.setdefault(sampling_seed, []).extend(EpisodeTask(tag, row, m, seed) for m in range(self.n))
        return tasks

    def cut(self, limit: int | None) -> Panel:
        """The first `limit` starts of each tag; None: all."""
        if limit is None:
            return self
        by_tag = {tag: [start for start in self.starts if start[0] == tag] for tag in self.tags}
        return Panel(self.name, tuple(start for starts in by_tag.values() for start in starts[:limit]), self.n)

    def digest(self, custom_envs: Mapping[str, Any]) -> str:
        """Ten hex digits: episodes, rules and success. `custom_envs`: plain entries by tag."""
        rules = {tag: {key: custom_envs[tag].get(key) for key in _RULES} for tag in self.tags}
        return digest({"starts": self.starts, "n": self.n, "success": SUCCESS, "rules": rules})


def digest(value: Any) -> str:
    """Ten hex digits of a JSON-ready value: the same in any process."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:10]


def panel_names() -> list[str]:
    """The panels that come with the project."""
    return sorted(path.stem for path in (CONFIG_DIR / "panels").glob("*.yaml"))


def find_panel(name: str) -> Panel:
    """A panel by name, or from a YAML file.

    Raises:
        ConfigError: no such panel, or a file that is none.
    """
    own = name.endswith((".yaml", ".yml"))
    path = Path(name).expanduser() if own else CONFIG_DIR / "panels" / f"{name}.yaml"
    if not path.is_file():
        close = nearest(name, panel_names())
        fix = f"did you mean {close}?" if close else f"known: {', '.join(panel_names())}; or give a YAML file"
        raise ConfigError([Fault("panel", name, "no such panel", fix)])
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([Fault("panel", name, f"bad YAML: {' '.join(str(error).split())}")]) from error
    if not isinstance(entries, dict) or not entries:
        raise ConfigError([Fault("panel", name, "no panel", "name tags and their starts, as config/panels does")])
    return Panel(path.stem, tuple(start for tag, entry in entries.items() for start in _starts(name, tag, entry)))


def _starts(name: str, tag: str, entry: Any) -> list[tuple[str, int, int]]:
    fix = "{first_seed: 123, starts: 100}, or {seeds: [7, 9]}; sampling_seed may be given as well"
    fault = ConfigError([Fault("panel", name, f"{tag}: {entry} names no starts", f"write {fix}")])
    if not isinstance(entry, dict) or set(entry) - set(_KEYS):
        raise fault
    seeds = entry.get("seeds")
    if (seeds is None) == ("starts" not in entry) or (seeds is not None and "first_seed" in entry):
        raise fault
    if seeds is None:
        first, count = entry.get("first_seed", VAL_SEED), entry["starts"]
        if not isinstance(first, int) or not isinstance(count, int):
            raise fault
        seeds = range(first, first + count)
    sampling_seed = entry.get("sampling_seed", VAL_SEED)
    if not all(isinstance(seed, int) and seed >= 0 for seed in [*seeds, sampling_seed]) or not len(set(seeds)):
        raise fault
    if len(set(seeds)) < len(seeds):
        raise ConfigError([Fault("panel", name, f"{tag}: a seed occurs twice", "name each start once")])
    return [(tag, seed, sampling_seed) for seed in seeds]


def panel_of(cfg: DictConfig, config_name: str) -> Panel:
    """The panel that a composed config asks for: `panel`, else its `es_manager.val`; then `n` and `limit`.

    Raises:
        ConfigError: see `find_panel`; or numbers below 1.
    """
    for key in ("n", "limit"):
        value = cfg[key]
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError([Fault(key, value, "a whole number of at least 1 is wanted", "leave it null")])
    panel = find_panel(cfg.panel) if cfg.panel is not None else _validation_panel(cfg, config_name)
    return Panel(panel.name, panel.cut(cfg.limit).starts, cfg.n or panel.n)


def _validation_panel(cfg: DictConfig, config_name: str) -> Panel:
    node, first = cfg.es_manager.val, resolve_seed(cfg.seed)["val"]
    tags, n_groups = list(node.env_configs.tags), node.env_configs.n_groups
    try:
        counts = resolve_n_groups(node.env_groups, tags, None if n_groups is None else list(n_groups))
    except ValueError as error:
        raise ConfigError([Fault("es_manager.val.env_configs.n_groups", n_groups, str(error))]) from error
    named = [tag for tag, count in zip(tags, counts, strict=True) for _ in range(count)]
    starts = tuple((tag, first + row, first) for row, tag in enumerate(named))
    return Panel(f"{config_name}-val", starts, node.group_size)


def apply_panel(cfg: DictConfig, panel: Panel) -> None:
    """Write a panel into `es_manager.val` (and `train`, which is not played), so that checks and readers see it."""
    counts = [sum(tag == each for each, _, _ in panel.starts) for tag in panel.tags]
    part = {
        "env_groups": sum(counts),
        "group_size": panel.n,
        "env_configs": {"tags": list(panel.tags), "n_groups": counts},
    }
    for side in ("train", "val"):
        OmegaConf.update(cfg, f"es_manager.{side}", part, merge=False)
