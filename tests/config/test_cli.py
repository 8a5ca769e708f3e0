"""The command line: exit status and lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ragen.config import cli
from ragen.config.compose import CONFIG_DIR
from ragen.config.run_dir import FINISHED


def test_nine_faults_are_nine_lines(capsys: pytest.CaptureFixture[str]):
    overrides = [
        "algorithm.lamm=0.9", "trainer.balance_batch=false", "data.train_batch_size=64", "ppo_mini_batch_size=24",
        "es_manager.train.env_configs.tags=[Sokobann]", "agent_proxy.max_context_window=3", "trainer.logger=[wandbb]",
        "actor_rollout_ref.rollout.max_model_len=8", "algorithm.adv_estimator=ppo",
    ]  # fmt: skip

    status = cli.main(["--config-name", "quickstart", *overrides])

    lines = capsys.readouterr().err.splitlines()
    assert status == 2
    assert len(lines) == len(overrides)
    for override in overrides:
        key = override.partition("=")[0]
        assert any(line.startswith(key) for line in lines), key


def test_a_typo_exits_2_with_one_line_from_the_shell():
    command = [sys.executable, "train.py", "--config-name", "quickstart", "algorithm.lamm=0.9"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CONFIG_DIR.parent, timeout=60)

    assert done.returncode == 2
    assert done.stderr.splitlines() == ["algorithm.lamm=0.9: no such key; did you mean algorithm.lam?"]


def test_plan_stops_before_anything_is_made(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    status = cli.main(["--config-name", "quickstart", "--plan", f"trainer.output_dir={tmp_path}"])

    assert status == 0
    assert "128 a step" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_multirun_makes_a_run_of_each_combination(capsys: pytest.CaptureFixture[str]):
    status = cli.main(["--config-name", "quickstart", "--plan", "-m", "seed=1,2", "lora.rank=0,8"])

    out = capsys.readouterr().out
    names = {line.split()[1] for line in out.splitlines() if line.startswith("run ")}
    assert status == 0
    assert len(names) == 4 and sum("-seed2-" in name for name in names) == 2


def test_multirun_runs_one_after_another_and_keeps_the_first_failure(monkeypatch: pytest.MonkeyPatch):
    commands: list[list[str]] = []

    class Child:
        def __init__(self, command: list[str]):
            commands.append(command)
            self.returncode = len(commands) - 1

        def wait(self) -> int:
            return self.returncode

    monkeypatch.setattr(cli.subprocess, "Popen", Child)

    status = cli.main(["--config-name", "quickstart", "-m", "seed=1,2,3"])

    assert status == 1
    assert [command[-1] for command in commands] == ["seed=1", "seed=2", "seed=3"]


def test_cfg_prints_a_part_of_the_config(capsys: pytest.CaptureFixture[str]):
    status = cli.main(["--config-name", "quickstart", "--cfg", "job", "-p", "agent_proxy"])

    assert status == 0
    assert "max_turn: 8" in capsys.readouterr().out


def test_a_finished_run_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from ragen.config import load
    from ragen.config.run_dir import run_name

    override = f"trainer.output_dir={tmp_path}"
    folder = tmp_path / run_name(load("quickstart", [override]), "quickstart")
    folder.mkdir()
    (folder / FINISHED).write_text("{}")

    status = cli.main(["--config-name", "quickstart", override])

    assert status == 0
    assert "is finished" in capsys.readouterr().out


def test_hand_over(capsys: pytest.CaptureFixture[str], tmp_path: Path, small_model: Path, monkeypatch):
    """A sound config reaches the launcher as veRL's config, and the launcher's status is the exit status."""
    import types

    handed = []
    launcher = types.ModuleType("ragen.trainer.launch")
    launcher.run = lambda config: handed.append(config) or 7
    monkeypatch.setitem(sys.modules, "ragen.trainer.launch", launcher)

    status = cli.main(["--config-name", "quickstart", f"model_path={small_model}", f"trainer.output_dir={tmp_path}"])

    assert status == 7
    (config,) = handed
    (folder,) = tmp_path.iterdir()
    assert config.ragen.run_dir == str(folder) and config.data.train_batch_size == 8
    assert "memory" in capsys.readouterr().out


def test_a_template_that_trains_the_wrong_way_stops_the_run(capsys, tmp_path: Path, small_model: Path):
    """Before Ray, with exit status 2, and without a trace."""
    import shutil

    model = tmp_path / "model"
    shutil.copytree(small_model, model)
    template = "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} a {% endfor %}"
    (model / "chat_template.jinja").write_text(template)
    runs = tmp_path / "runs"

    status = cli.main(["--config-name", "quickstart", f"model_path={model}", f"trainer.output_dir={runs}"])

    lines = capsys.readouterr().err.splitlines()
    assert status == 2 and not list(runs.iterdir())
    assert all(line.startswith(f"model_path={model}: "[:60]) for line in lines)
    assert any("end_of_turn under this config: the template ends a reply with" in line for line in lines)
    assert any("; make the template write it where add_generation_prompt is set" in line for line in lines)
