"""A run's own folder: never another's, and its own again when it goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from ragen.config import load
from ragen.config.compose import CONFIG_DIR
from ragen.config.run_dir import FINISHED, RunDir, config_hash, open_run, run_name

Quickstart = Callable[..., DictConfig]


@pytest.fixture
def start(tmp_path: Path, quickstart: Quickstart) -> Callable[..., RunDir]:
    def start(*overrides: str) -> RunDir:
        return open_run(
            quickstart(f"trainer.output_dir={tmp_path}", *overrides), "quickstart", ["train.py", *overrides]
        )

    return start


def test_a_new_run_records_what_it_is(start: Callable[..., RunDir]):
    run = start("seed=1")

    assert run.status == "new"
    assert run.name.startswith("quickstart-seed1-")
    resolved = OmegaConf.load(run.path / "config.yaml")
    assert resolved.critic.ppo_mini_batch_size == 32 and resolved.seed == 1
    assert "seed=1" in (run.path / "command.txt").read_text()
    versions = json.loads((run.path / "versions.json").read_text())
    assert versions["verl"] == "0.9.1" and versions["python"].startswith("3.")
    run.release()


def test_the_same_command_goes_on(start: Callable[..., RunDir]):
    first = start()
    first.release()

    second = start()

    assert (second.path, second.status) == (first.path, "resume")
    assert len((second.path / "command.txt").read_text().splitlines()) == 2
    second.release()


def test_a_finished_run_is_left_alone(start: Callable[..., RunDir]):
    first = start()
    (first.path / FINISHED).write_text("{}")
    first.release()

    second = start()

    assert (second.path, second.status) == (first.path, "finished")
    assert len((second.path / "command.txt").read_text().splitlines()) == 1
    second.release()


def test_resume_disabled_takes_a_fresh_folder(start: Callable[..., RunDir]):
    first = start()
    first.release()

    second = start("trainer.resume_mode=disable")

    assert second.status == "new"
    assert second.name == first.name + "-2"
    second.release()


def test_two_at_once_get_two_folders(start: Callable[..., RunDir]):
    first, second = start(), start()

    assert (second.name, second.status) == (first.name + "-2", "new")
    (second.path / FINISHED).write_text("{}")
    second.release()
    third = start()
    assert (third.name, third.status) == (first.name + "-3", "new")
    first.release()
    third.release()


def test_the_lock_ends_with_the_process(tmp_path: Path, quickstart: Quickstart):
    code = (
        "import os; from ragen.config import load; from ragen.config.run_dir import open_run;"
        f"r = open_run(load('quickstart', ['trainer.output_dir={tmp_path}']), 'quickstart', []);"
        "print(r.name, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CONFIG_DIR.parent)

    run = open_run(quickstart(f"trainer.output_dir={tmp_path}"), "quickstart", [])

    assert run.name == done.stdout.strip(), done.stderr
    assert run.status == "resume"
    run.release()


@pytest.mark.parametrize(
    "override",
    ["algorithm.lam=0.9", "seed=1", "model_path=/m", "trainer.total_training_steps=60",
     "custom_envs.FrozenLake.env_config.size=5", "trainer.n_gpus_per_node=2"],
)  # fmt: skip
def test_what_changes_results_changes_the_hash(override: str, quickstart: Quickstart):
    assert config_hash(quickstart(override)) != config_hash(quickstart())


@pytest.mark.parametrize(
    "override",
    ["trainer.logger=[console,tensorboard]", "trainer.project_name=p", "trainer.experiment_name=e",
     "trainer.save_freq=1", "trainer.output_dir=/elsewhere", "trainer.resume_mode=disable",
     "ray_kwargs.ray_init.num_cpus=32", "custom_envs.Bandit.max_actions_per_traj=2", "seed=0",
     "system.CUDA_VISIBLE_DEVICES=0"],
)  # fmt: skip
def test_what_changes_no_result_keeps_the_hash(override: str, quickstart: Quickstart):
    assert config_hash(quickstart(override)) == config_hash(quickstart())


@pytest.mark.wide
def test_the_hash_is_the_same_in_another_process(quickstart: Quickstart):
    code = "from ragen.config import load, run_dir; print(run_dir.config_hash(load('quickstart')))"
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CONFIG_DIR.parent, env=env)

    assert done.stdout.strip() == config_hash(quickstart()), done.stderr


def test_names_suit_a_file_system():
    cfg = load("_2_sokoban", ["trainer.experiment_name='my run/√'"])

    assert run_name(cfg, "_2_sokoban").startswith("_2_sokoban-my-run-seed0-")
