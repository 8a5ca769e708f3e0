"""Plays a config's validation panel with scripted policies and prints a table: the floor and the ceiling of a task.

    python -m ragen.llm_agent.agent_proxy --config-name quickstart --policy random oracle

Policies are scripts for now; a config's model is refused.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from omegaconf import OmegaConf
from rich import box
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from ragen.config.compose import load
from ragen.config.errors import ConfigError
from ragen.config.to_verl import resolve_n_groups, resolve_seed
from ragen.env.registry import load_specs
from ragen.eval.statistics import wilson_interval
from ragen.llm_agent.agent_proxy import LLMAgentProxy, Progress
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, Split
from ragen.llm_agent.policy import SCRIPTS, ScriptedPolicy
from ragen.llm_agent.prompt_hash import prompt_hash, prompt_settings
from ragen.llm_agent.trajectory import Trajectory
from ragen.rewards import RewardFunction
from ragen.trainer.settings import composed_context_config


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit status (2: a fault of the configuration)."""
    parser = argparse.ArgumentParser(prog="python -m ragen.llm_agent.agent_proxy", description=__doc__)
    parser.add_argument("--config-name", default="quickstart", help="the config whose es_manager.val is played")
    parser.add_argument("--config-dir", help="a folder of configs of your own")
    parser.add_argument("--policy", nargs="+", choices=sorted(SCRIPTS), default=["random", "oracle"])
    parser.add_argument("overrides", nargs="*", help="Hydra overrides, for example es_manager.val.env_groups=64")
    options = parser.parse_intermixed_args(argv)
    try:
        cfg = load(options.config_name, options.overrides, options.config_dir)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    played = {policy: play(cfg, policy) for policy in options.policy}
    rows = [row for policy, panel in played.items() for row in _rows(policy, panel.trajectories, panel.seconds)]
    Console().print(_table(options.config_name, cfg, rows, played[options.policy[0]].prompt_hash))
    return 0


class Played(NamedTuple):
    """A panel that was played."""

    trajectories: list[Trajectory]
    seconds: float
    prompt_hash: str
    """Names the wording of the prompts: `ragen.llm_agent.prompt_hash`."""


def play(cfg: Any, policy: str) -> Played:
    """Play the panel of a composed config with the script `policy`."""
    node = cfg.es_manager.val
    tags = list(node.env_configs.tags)
    counts = resolve_n_groups(node.env_groups, tags, node.env_configs.n_groups)
    split = Split(node.env_groups, node.group_size, tuple(tags), tuple(counts))
    seed = resolve_seed(cfg.seed)["val"]
    es = EnvStateManager(
        load_specs(cfg.custom_envs),
        split,
        run_seed=seed,
        base_seed=seed,
        format_penalty=cfg.es_manager.format_penalty,
    )
    ctx = ContextManager(_tokenizer(cfg.model_path), composed_context_config(cfg))
    reward = RewardFunction.from_config(OmegaConf.to_container(cfg.reward, resolve=True))
    rewarded = reward if reward is not None and reward.in_validation else None
    proxy = LLMAgentProxy(es, ctx, ScriptedPolicy(SCRIPTS[policy], ctx), reward=rewarded)
    started = time.monotonic()
    with tqdm(total=split.env_groups * split.group_size, desc=policy, unit="ep", leave=False) as bar:
        proxy.progress = Progress(on_change=lambda progress: bar.update(progress.episodes_done - bar.n))
        try:
            trajectories = asyncio.run(proxy.rollout())
        finally:
            es.close()
    return Played(trajectories, time.monotonic() - started, prompt_hash(prompt_settings(ctx, es.specs)))


def _tokenizer(model_path: str) -> Any:
    """The model's tokenizer where it is a folder, else the tiny model's: a script's play does not depend on it."""
    if Path(model_path).is_dir():
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(model_path)
    from ragen.tiny_model import Recipe, make_tokenizer

    return make_tokenizer(Recipe())


def _rows(policy: str, trajectories: list[Trajectory], seconds: float) -> list[list[str]]:
    rows = []
    for tag in dict.fromkeys(t.tag for t in trajectories):
        played = [t for t in trajectories if t.tag == tag]
        usable = [t for t in played if t.usable]
        solved = sum(t.metrics["success"] > 0 for t in usable)
        low, high = wilson_interval(solved, len(played))
        mean = {
            "return": np.mean([t.episode_return for t in usable] or [np.nan]),
            "turns": np.mean([t.num_turns for t in usable] or [np.nan]),
            "tokens": np.mean([len(t.token_ids) for t in usable] or [np.nan]),
        }
        rows.append(
            [
                policy,
                tag,
                str(len(played)),
                f"{100 * solved / len(played):.1f} % [{100 * low:.1f}, {100 * high:.1f}]",
                f"{mean['return']:.2f}",
                f"{mean['turns']:.1f}",
                f"{mean['tokens']:.0f}",
                str(len(played) - len(usable)),
                f"{seconds:.1f}",
            ]
        )
    return rows


def _table(config_name: str, cfg: Any, rows: list[list[str]], prompts: str) -> Table:
    title = f"validation panel of {config_name}, seeds from {resolve_seed(cfg.seed)['val']}, prompts {prompts}"
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1), collapse_padding=True)
    for name in ("policy", "tag", "episodes", "success [95 %]", "return", "turns", "tokens", "failed", "seconds"):
        table.add_column(name, justify="left" if name in ("policy", "tag") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
