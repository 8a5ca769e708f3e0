"""Evaluates a model on a panel: `python -m ragen.llm_agent.agent_proxy --config-name eval model_path=… panel=…`.

Into the folder of results go `rollouts.jsonl` (docs/records.md), `config.yaml`, `evaluation.json` (what is evaluated:
its identity), and at the end `summary.json` and `summary.md`. An evaluation that was stopped is continued by the same
command: episodes that are in `rollouts.jsonl` are kept, failed ones too. A folder that holds another evaluation is
refused, with what differs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from ragen.config.checks import EVALUATION_CHECKS, check
from ragen.config.compose import CONFIG_DIR, compose, config_names
from ragen.config.errors import ConfigError, Fault
from ragen.config.run_dir import versions
from ragen.env.registry import load_specs
from ragen.eval.api_models import API, API_KEYS, api_faults, without_keys
from ragen.eval.models import Player, limits_length, player_of
from ragen.eval.panels import SUCCESS, Panel, apply_panel, digest, panel_names, panel_of
from ragen.eval.records import RecordWriter, read_records
from ragen.eval.summary import Summary, markdown, summarize_tag
from ragen.llm_agent.agent_proxy import LLMAgentProxy, SamplingParams
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, EpisodeTask, Split
from ragen.llm_agent.meter import episode_meter
from ragen.llm_agent.prompt_hash import prompt_hash, prompt_settings
from ragen.llm_agent.trajectory import Trajectory
from ragen.rewards import RewardFunction
from ragen.trainer.settings import composed_context_config

__all__ = ["Evaluation", "evaluate", "load_config", "main"]

ROLLOUTS, IDENTITY, SUMMARY = "rollouts.jsonl", "evaluation.json", "summary.json"

Key = tuple[str, int, int]


def load_config(
    config_name: str, overrides: Sequence[str] = (), config_dir: str | None = None
) -> tuple[DictConfig, Panel]:
    """A checked config with its panel written into `es_manager.val`.

    Raises:
        ConfigError: every fault that was found.
    """
    settings = OmegaConf.load(CONFIG_DIR / "evaluation" / "settings.yaml")
    cfg, faults = compose(config_name, overrides, config_dir, beside=settings)
    if cfg is None:
        raise ConfigError(faults)
    panel = panel_of(cfg, Path(config_name).stem)
    apply_panel(cfg, panel)
    path = cfg.model_path = str(cfg.model_path)  # it may name another key, which `own` lacks
    own = OmegaConf.masked_copy(cfg, [key for key in cfg if key not in settings and key not in API_KEYS])
    checks = [each for each in EVALUATION_CHECKS if limits_length(path) or each.__name__ != "_context"]
    faults += [fault for fault in check(own, checks) if fault not in faults]
    if path.startswith(API):
        faults = [without_keys(fault) for fault in faults] + list(api_faults(cfg))
    if faults:
        raise ConfigError(faults)
    return cfg, panel


class Evaluation:
    """One model on one panel, in one folder.

    Args:
        cfg: from `load_config`.
        panel: its panel.
        player: the model.

    Raises:
        ConfigError: the folder holds another evaluation, or another process works in it.
    """

    def __init__(self, cfg: DictConfig, panel: Panel, player: Player):
        self.cfg, self.panel, self.player = cfg, panel, player
        self.ctx = ContextManager(player.tokenizer, player.context_config(composed_context_config(cfg)))
        self.specs = load_specs(cfg.custom_envs)
        envs = OmegaConf.to_container(cfg.custom_envs, resolve=True)
        self.panel_hash = panel.digest(envs)
        self.identity = self._identity()
        self.identity_hash = digest(self.identity)
        self.folder = self._folder()

    def _identity(self) -> dict[str, Any]:
        """All that can change results, JSON-ready."""
        val = self.cfg.actor_rollout_ref.rollout.val_kwargs
        reward = OmegaConf.to_container(self.cfg.reward, resolve=True)
        settings = prompt_settings(self.ctx, {tag: self.specs[tag] for tag in self.panel.tags})
        return json.loads(json.dumps({
            "model": {"name": self.player.name, "revision": self.player.revision, **self.player.facts},
            "panel": {"name": self.panel.name, "hash": self.panel_hash},
            "prompt_hash": prompt_hash(settings),
            "template_hash": digest(self.ctx.template),
            "sampling": {
                "temperature": float(val.temperature) if val.do_sample else 0.0,
                "top_p": float(val.top_p),
                "top_k": int(val.top_k),
                "response_length": self.ctx.config.response_length,
                "max_model_len": self.ctx.config.max_model_len,
                "stop": list(self.ctx.config.stop),
                "max_tokens": {tag: self.specs[tag].max_tokens for tag in self.panel.tags},
            },
            "format_penalty": float(self.cfg.es_manager.format_penalty),
            "reward": reward if reward["path"] and reward["in_validation"] else None,
        }))  # fmt: skip

    def _folder(self) -> Path:
        if self.cfg.output_dir is not None:
            return Path(self.cfg.output_dir).expanduser().resolve()
        model = re.sub(r"[^A-Za-z0-9_.]+", "-", "/".join(Path(self.player.name).parts[-2:])).strip("-")
        return Path("evals", f"{self.panel.name}-{model}-{self.identity_hash}").resolve()

    def run(self) -> Summary:
        """Play what is missing, and summarise. Stops at Ctrl-C and SIGTERM with what was played kept."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock", timeout=0)
        try:
            with lock:
                return self._run()
        except Timeout:
            fault = Fault("output_dir", self.folder, "another evaluation works in it", "wait, or choose another folder")
            raise ConfigError([fault]) from None

    def _run(self) -> Summary:
        self._claim()
        done = self._played()
        tasks = {seed: [t for t in tasks if _key(t) not in done] for seed, tasks in self.panel.tasks().items()}
        kept = len(done)
        missing = sum(map(len, tasks.values()))
        wall_s = 0.0
        if missing:
            with RecordWriter(self.folder / ROLLOUTS, append=True) as writer:

                def write(trajectory: Trajectory) -> None:
                    writer.write(trajectory)
                    done[trajectory.tag, trajectory.seed, trajectory.member] = trajectory

                wall_s = asyncio.run(self._play(tasks, missing, kept, write))
        return self._summarise(done, kept, wall_s)

    def _claim(self) -> None:
        """Take the folder for this evaluation."""
        path = self.folder / IDENTITY
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            if before["identity_hash"] != self.identity_hash:
                differs = "; ".join(_differences(before["identity"], self.identity)) or "its identity"
                problem = f"holds another evaluation, which differs: {differs}"
                raise ConfigError([Fault("output_dir", self.folder, problem, "choose another folder")])
            return
        if (self.folder / ROLLOUTS).is_file():
            problem = f"holds a {ROLLOUTS} of unknown origin, without {IDENTITY}"
            raise ConfigError([Fault("output_dir", self.folder, problem, "choose another folder")])
        (self.folder / "config.yaml").write_text(OmegaConf.to_yaml(self._resolved()), encoding="utf-8")
        record = {"identity_hash": self.identity_hash, "identity": self.identity}
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def _resolved(self) -> DictConfig:
        """The config as it was used, for replay, viewer and people."""
        plain = OmegaConf.to_container(self.cfg, resolve=True, throw_on_missing=False)
        plain["actor_rollout_ref"]["rollout"]["max_model_len"] = self.ctx.config.max_model_len
        return OmegaConf.create(plain)

    def _played(self) -> dict[Key, Trajectory]:
        path = self.folder / ROLLOUTS
        if not path.is_file():
            return {}
        with RecordWriter(path, append=True):
            pass  # a line that a crash cut is taken off
        trajectories = (record.trajectory for record in read_records(path))
        return {(t.tag, t.seed, t.member): t for t in trajectories}

    async def _play(
        self, tasks: dict[int, list[EpisodeTask]], missing: int, kept: int, write: Callable[[Trajectory], None]
    ) -> float:
        """Play `tasks` (sampling seed → episodes); seconds that it took once the model was up."""
        loop, this = asyncio.get_running_loop(), asyncio.current_task()
        loop.add_signal_handler(signal.SIGTERM, this.cancel)
        async with self.player.open(self.ctx) as policy:
            started = time.monotonic()
            slots = asyncio.Semaphore(self.player.concurrency)
            with tqdm(total=kept + missing, initial=kept, desc=self.panel.name, unit="ep", dynamic_ncols=True) as bar:
                failed = 0

                async def one(proxy: LLMAgentProxy, task: EpisodeTask) -> None:
                    nonlocal failed
                    async with slots:
                        began = time.monotonic()
                        with episode_meter() as meter:
                            t = await proxy.run_episode(task)
                    metrics = {**t.metrics, **meter, **self.player.marks, "seconds": round(time.monotonic() - began, 4)}
                    write(dataclasses.replace(t, metrics=metrics))
                    failed += not t.usable
                    bar.set_postfix_str(f"failed {failed}" if failed else "", refresh=False)
                    bar.update()

                proxies = {seed: self._proxy(policy, seed) for seed, wanted in tasks.items() if wanted}
                running = [asyncio.ensure_future(one(proxies[seed], task)) for seed in proxies for task in tasks[seed]]
                try:
                    await asyncio.gather(*running)
                except asyncio.CancelledError:
                    print("stopped: the same command continues", file=sys.stderr)
                finally:
                    for each in running:  # where one has raised, the others still play
                        each.cancel()
                    await asyncio.gather(*running, return_exceptions=True)
                    for proxy in proxies.values():
                        proxy.es.close()
            return time.monotonic() - started

    def _proxy(self, policy: Any, sampling_seed: int) -> LLMAgentProxy:
        node, cfg = self.cfg.es_manager.val, self.cfg
        es = EnvStateManager(
            self.specs,
            Split(node.env_groups, node.group_size, self.panel.tags, tuple(node.env_configs.n_groups)),
            run_seed=sampling_seed,
            base_seed=0,  # unused: each task says its own seed
            format_penalty=cfg.es_manager.format_penalty,
        )
        reward = RewardFunction.from_config(OmegaConf.to_container(cfg.reward, resolve=True))
        sampling = {key: self.identity["sampling"][key] for key in ("temperature", "top_p", "top_k")}
        return LLMAgentProxy(
            es,
            self.ctx,
            policy,
            sampling=SamplingParams(**sampling),
            generation_timeout_s=cfg.agent_proxy.generation_timeout_s,
            episode_timeout_s=cfg.agent_proxy.episode_timeout_s,
            reward=reward if reward is not None and reward.in_validation else None,
        )

    def _summarise(self, done: dict[Key, Trajectory], kept: int, wall_s: float) -> Summary:
        wanted = [_key(task) for tasks in self.panel.tasks().values() for task in tasks]
        episodes = [done[key] for key in wanted if key in done]
        by_tag = {tag: [t for t in episodes if t.tag == tag] for tag in self.panel.tags}
        starts = [tag for tag, _, _ in self.panel.starts]
        summary = Summary(
            panel={
                "name": self.panel.name,
                "hash": self.panel_hash,
                "n": self.panel.n,
                "tags": {tag: starts.count(tag) for tag in self.panel.tags},
                "success": SUCCESS,
            },
            identity_hash=self.identity_hash,
            identity=self.identity,
            versions=versions(),
            complete=len(episodes) == len(wanted),
            wall_s=round(wall_s, 1),
            kept=kept,
            tags={
                tag: summarize_tag(played, n=self.panel.n, price=self.player.price)
                for tag, played in by_tag.items()
                if played
            },
        )
        text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        (self.folder / SUMMARY).write_bytes(text + b"\n")
        (self.folder / "summary.md").write_text(markdown(summary), encoding="utf-8")
        return summary


def evaluate(config_name: str, overrides: Sequence[str] = (), config_dir: str | None = None) -> tuple[Summary, Path]:
    """Evaluate as a config says; the summary, and the folder that holds everything.

    Raises:
        ConfigError: see `load_config` and `Evaluation`.
    """
    cfg, panel = load_config(config_name, overrides, config_dir)
    evaluation = Evaluation(cfg, panel, player_of(cfg))
    return evaluation.run(), evaluation.folder


def _key(task: EpisodeTask) -> Key:
    return task.tag, task.seed, task.member


def _differences(before: Any, now: Any, key: str = "") -> list[str]:
    """`key: before, now …` for each leaf that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        return [text for k in keys for text in _differences(before.get(k), now.get(k), f"{key}.{k}" if key else k)]
    return [] if before == now else [f"{key} is {before} there and {now} here"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 2: a fault of the configuration, 130: stopped before the panel's end."""
    parser = argparse.ArgumentParser(
        prog="python -m ragen.llm_agent.agent_proxy",
        description="Evaluate a model on a panel (docs/evaluation.md).",
        epilog=f"configs: {', '.join(config_names())}; panels: {', '.join(panel_names())}",
    )
    parser.add_argument("--config-name", default="eval", help="eval, or any training config")
    parser.add_argument("--config-dir", help="a folder of configs of your own")
    parser.add_argument("overrides", nargs="*", help="for example model_path=scripted:random panel=sokoban")
    options = parser.parse_intermixed_args(argv)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        summary, folder = evaluate(options.config_name, options.overrides, options.config_dir)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    print(markdown(summary))
    with contextlib.suppress(ValueError):
        folder = folder.relative_to(Path.cwd())
    print(f"{folder}: {ROLLOUTS}, {SUMMARY}, summary.md; {summary.kept} episodes kept, {summary.wall_s:.1f} s of play")
    return 0 if summary.complete else 128 + signal.SIGINT


if __name__ == "__main__":
    raise SystemExit(main())
