"""The trainer's side of the watch, on a trainer that only logs."""

import json
import types

import pytest
from omegaconf import OmegaConf

from ragen.trainer.collapse.phase import ALARMS_FILE, CollapsePhase
from tests.trainer.collapse.test_signals import END, episode

BAD = [episode([201, 202, 203, 204]), episode([201, 202, 203, 204], member=1)]
GOOD = [episode([201, END], returns=1.0), episode([201, END], member=1)]


class Trainer(CollapsePhase):
    def __init__(self, run_dir, action):
        node = {"action": action, "patience": 2, "baseline_steps": 2, "ngram": 2, "thresholds": {"truncation": 0.5}}
        own = {
            "run_dir": str(run_dir),
            "collapse_detection": node,
            "custom_envs": {"A": {"max_tokens": None}},
            "response_length": 4,
            "max_model_len": 100,
        }
        self.config = OmegaConf.create({"ragen": own})
        self.agent_loop_manager = types.SimpleNamespace(ctx=types.SimpleNamespace(end_ids={END}))
        self.global_steps = 0
        self._init_collapse()

    def step(self, episodes):
        self.global_steps += 1
        metrics = {"actor/grad_norm": 1.5}
        self._watch_for_collapse(episodes, metrics)
        return metrics


def recorded(run_dir):
    path = run_dir / ALARMS_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_warn_says_so_once_and_goes_on(tmp_path, caplog):
    trainer = Trainer(tmp_path, "warn")
    for _ in range(3):
        metrics = trainer.step(BAD)
    assert metrics["collapse/A/alarm/truncation"] == 3.0 and metrics["collapse/stop"] == 0.0
    assert metrics["collapse/all/grad_norm"] == 1.5
    assert [(line["step"], line["action"], line["rule"]) for line in recorded(tmp_path)] == [(2, "warn", "truncation")]
    assert caplog.text.count("signs of a collapse: A: truncation for 2 looks in a row") == 1
    assert trainer._collapsed == []


def test_stop_names_the_signal_in_metrics_console_and_folder(tmp_path, caplog):
    trainer = Trainer(tmp_path, "stop")
    assert trainer.step(BAD)["collapse/stop"] == 0.0
    metrics = trainer.step(BAD)
    assert metrics["collapse/stop"] == 1.0
    assert [alarm.rule for alarm in trainer._collapsed] == ["truncation"]
    (line,) = recorded(tmp_path)
    assert (line["step"], line["action"], line["tag"], line["signal"]) == (2, "stop", "A", "truncated_share")
    assert (
        "share of replies cut off at their token limit: 1, bad from 0.5" in line["reason"]
        and line["reason"] in caplog.text
    )


def test_none_logs_signals_and_judges_nothing(tmp_path):
    trainer = Trainer(tmp_path, "none")
    for _ in range(3):
        metrics = trainer.step(BAD)
    assert metrics["collapse/A/truncated_share"] == 1.0
    assert not [key for key in metrics if "alarm" in key or "stop" in key] and recorded(tmp_path) == []


@pytest.mark.parametrize(("seen", "stops"), [(BAD, 1.0), (GOOD, 0.0)])
def test_a_resumed_run_counts_on(tmp_path, seen, stops):
    metrics = Trainer(tmp_path, "stop").step(seen)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, **metrics}) + "\n")
    resumed = Trainer(tmp_path, "stop")
    resumed._replay_collapse()
    assert resumed.step(BAD)["collapse/stop"] == stops
