"""The command line of train.py: compose → check → plan → hand over to veRL.

Hydra's grammar and its options, without its launcher: a fault is one line, and every fault is shown, with exit
status 2, before Ray or torch is touched.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from ragen.config.checks import check
from ragen.config.compose import CONFIG_DIR, compose, config_names
from ragen.config.errors import ConfigError, Fault
from ragen.config.model_facts import ModelFacts
from ragen.config.plan import plan
from ragen.config.run_dir import open_run, run_name
from ragen.config.template_faults import template_faults
from ragen.config.to_verl import resolve_model_path, to_verl

__all__ = ["main", "wait_passing_signals"]

_EXIT_FAULT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status: 0 done, 2 a fault of the configuration, else the run's own."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = _parser().parse_intermixed_args(words)
    config_dir = options.config_dir or options.config_path
    jobs = _jobs(options.overrides) if options.multirun else [options.overrides]
    faults: list[Fault] = []
    cfgs: list[DictConfig] = []
    for overrides in jobs:
        cfg, found = compose(options.config_name, overrides, config_dir)
        if options.cfg is None and cfg is not None:
            found += [fault for fault in check(cfg) if fault not in found]
        faults += [fault for fault in found if fault not in faults]
        if cfg is not None:
            cfgs.append(cfg)
    if faults:
        print(ConfigError(faults), file=sys.stderr)
        return _EXIT_FAULT
    if options.cfg is not None:
        for cfg in cfgs:
            _show(cfg, options.package, options.resolve)
        return 0
    name = Path(options.config_name).stem
    if options.plan:
        print("\n\n".join(plan(cfg, ModelFacts.of(cfg), run=run_name(cfg, name)) for cfg in cfgs))
        return 0
    if len(jobs) > 1:
        return _run_each(options, config_dir, jobs)
    return _run(cfgs[0], name, words)


def _run(cfg: DictConfig, config_name: str, words: Sequence[str]) -> int:
    visible = cfg.system.CUDA_VISIBLE_DEVICES
    if visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(visible)
    run = open_run(cfg, config_name, ["python", "train.py", *words])
    try:
        if run.status == "finished":
            print(f"{run.path} is finished; trainer.resume_mode=disable runs it once more, in a folder of its own")
            return 0
        model = resolve_model_path(cfg.model_path)
        if faults := template_faults(cfg, model):
            print(ConfigError(faults), file=sys.stderr)
            if run.status == "new":  # nothing ran in it
                shutil.rmtree(run.path)
            return _EXIT_FAULT
        print(plan(cfg, ModelFacts.of(cfg, model), run=run.name))
        if run.status == "resume":
            print(f"resuming the run in {run.path}")
        print(flush=True)
        from ragen.trainer.launch import run as launch

        return launch(to_verl(cfg, config_name=config_name, run_dir=run.path))
    finally:
        run.release()


def _run_each(options: argparse.Namespace, config_dir: str | None, jobs: list[list[str]]) -> int:
    """One process after another: a run that fails, or leaves its process in disorder, does not spoil the next."""
    script = str(Path(sys.argv[0]).resolve())
    first_failure = 0
    for number, overrides in enumerate(jobs, 1):
        command = [sys.executable, script, "--config-name", options.config_name]
        command += ["--config-dir", config_dir] if config_dir else []
        print(f"[{number}/{len(jobs)}] {' '.join(overrides)}", flush=True)
        child = subprocess.Popen([*command, *overrides])
        stopped = wait_passing_signals(child)
        first_failure = first_failure or child.returncode
        if stopped:
            break
    return first_failure


def wait_passing_signals(child: subprocess.Popen) -> bool:
    """Wait for the child, passing on what asks this process to stop. Returns whether it was asked."""
    stopped = False

    def forward(signum: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True
        if signum != signal.SIGINT and child.poll() is None:  # Ctrl-C reaches the whole foreground group by itself
            child.send_signal(signum)

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {signum: signal.signal(signum, forward) for signum in signals}
    try:
        child.wait()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return stopped


def _jobs(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of the values that sweeps list: seed=1,2 lora.rank=0,8 → four jobs."""
    choices: list[list[str]] = []
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException:
            choices.append([text])  # reported by compose
            continue
        if override.is_sweep_override():
            key = text.partition("=")[0]
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([text])
    return [list(job) for job in itertools.product(*choices)]


def _show(cfg: DictConfig, package: str | None, resolve: bool) -> None:
    node = OmegaConf.select(cfg, package) if package else cfg
    print(OmegaConf.to_yaml(node, resolve=resolve) if OmegaConf.is_config(node) else node)


def _parser() -> argparse.ArgumentParser:
    hardware = ", ".join(sorted(path.stem for path in (CONFIG_DIR / "hw").glob("*.yaml")))
    parser = argparse.ArgumentParser(
        prog="train.py",
        description="Train a language-model agent by reinforcement learning.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            f"configs:   {', '.join(config_names())}\n"
            f"hardware:  +hw= {hardware}\n\n"
            "examples:\n"
            "  python train.py --config-name quickstart\n"
            "  python train.py --config-name _2_sokoban +hw=1x24gb model_path=Qwen/Qwen2.5-0.5B-Instruct\n"
            "  python train.py --config-name quickstart -m seed=1,2,3\n"
            "  python train.py --config-dir my_configs --config-name mine --plan\n"
        ),
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings that differ from the config")
    parser.add_argument("--config-name", "-cn", default="base", metavar="NAME", help="the config (default: base)")
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help="a folder with configs of your own")
    parser.add_argument("--config-path", "-cp", metavar="DIR", help="the same")
    parser.add_argument("--multirun", "-m", action="store_true", help="a,b,c are values for runs one after another")
    parser.add_argument("--plan", action="store_true", help="check, print the plan and stop")
    parser.add_argument("--cfg", "-c", choices=["job"], help="print the composed config and stop")
    parser.add_argument("--package", "-p", metavar="KEY", help="with --cfg: only this part of it")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: fill in what refers to other keys")
    return parser
