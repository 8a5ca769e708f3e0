"""What a recording must have to be trained on, and what of it is worth a word."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from omegaconf import DictConfig

from ragen.config.checks import check
from ragen.config.model_facts import ModelFacts
from ragen.config.offline import cautions
from ragen.config.plan import plan
from ragen.eval.records import write_records
from ragen.llm_agent.trajectory import Trajectory
from ragen.tiny_model import Recipe, make_tokenizer
from ragen.trainer.recording import load_groups
from tests.eval.played import play

Quickstart = Callable[..., DictConfig]


@pytest.fixture(scope="module")
def episodes() -> list[Trajectory]:
    """Two groups of two, as if a model had sampled them; their seeds are no validation levels."""
    found = play(make_tokenizer(Recipe()), tags=("FrozenLake",))
    return [
        dataclasses.replace(t, log_probs=np.where(t.policy_mask, -0.5, 0).astype(np.float32), seed=t.seed + 20_000)
        for t in found
    ]


@pytest.fixture
def offline(tmp_path: Path, quickstart: Quickstart):
    """Faults of the quickstart with these episodes as its recording."""

    def faults(episodes, *overrides: str) -> list[str]:
        write_records(tmp_path / "rollouts.jsonl", episodes)
        load_groups.cache_clear()
        return [str(fault) for fault in check(config(*overrides))]

    def config(*overrides: str) -> DictConfig:
        path = f"offline.path={tmp_path / 'rollouts.jsonl'}"
        return quickstart(path, "es_manager.train.env_groups=2", *overrides)

    faults.config = config
    return faults


def test_a_recording_of_the_same_tokenizer_is_sound(offline, episodes):
    assert offline(episodes) == []
    text = plan(offline.config("offline.ratio=0.5"), ModelFacts())
    assert "offline 0.5 of each step's groups from 2 recorded (FrozenLake)" in text
    assert "lag     ragen_sync: weights per token cut at 2.0" in text


CHANGES = {
    "have no log-probs": lambda t: dataclasses.replace(t, log_probs=np.zeros_like(t.log_probs)),
    "played through an API, which gives text": lambda t: dataclasses.replace(t, metrics={"byte_tokens": 1.0}),
    "2 recorded levels are those that the run is judged by": lambda t: dataclasses.replace(t, seed=t.seed - 19_970),
    "holds episodes of Elsewhere, which is not in custom_envs": lambda t: dataclasses.replace(t, tag="Elsewhere"),
    "another tokenizer wrote it than that of tiny": lambda t: dataclasses.replace(
        t, turns=tuple(dataclasses.replace(turn, reply="<answer>Dance</answer>") for turn in t.turns)
    ),
}  # fmt: skip


@pytest.mark.parametrize("problem", CHANGES)
def test_what_cannot_be_trained_on_is_refused(offline, episodes, problem):
    [fault] = offline([CHANGES[problem](t) for t in episodes])
    assert problem in fault


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("es_manager.train.group_size=1", "recorded groups of up to 2 members stay whole; set it to 2"),
        ("es_manager.train.env_groups=4", "holds 2 usable groups, and a step takes 4"),
        ("offline.ratio=1.5", "out of range"),
        ("enable_response_mask=false", "tokens that nobody sampled have no ratio"),
    ],
)
def test_settings_that_do_not_go_with_it_are_named(offline, episodes, override, problem):
    assert any(problem in fault for fault in offline(episodes, override))


def test_a_file_that_is_not_there_is_a_fault(quickstart: Quickstart):
    [fault] = [str(fault) for fault in check(quickstart("offline.path=/nowhere/rollouts.jsonl"))]
    assert fault.startswith("offline.path=/nowhere/rollouts.jsonl") and "No such file" in fault


def test_a_ratio_alone_is_read_by_nothing(quickstart: Quickstart):
    [fault] = [str(fault) for fault in check(quickstart("offline.ratio=0.5"))]
    assert fault == "offline.ratio=0.5: not read without offline.path; set offline.path"


def test_another_model_and_other_prompts_are_told(offline, episodes, tmp_path):
    from ragen.config.offline import _prompts, _tokenizer
    from ragen.llm_agent.prompt_hash import record_prompts

    offline(episodes)
    cfg = offline.config()
    assert cautions(cfg) == ["no config.yaml near the recording: its model is not known"]
    (tmp_path / "config.yaml").write_text("model_path: Qwen/Qwen2.5-0.5B-Instruct\n")
    settings = json.loads(json.dumps(_prompts(cfg, _tokenizer(cfg)), default=str))
    record_prompts(tmp_path, settings)
    assert cautions(cfg) == ["Qwen/Qwen2.5-0.5B-Instruct was recorded, tiny is trained"]
    settings["context"]["system_prompt"] = "Play well."
    settings["environments"]["Elsewhere"] = {}
    record_prompts(tmp_path, settings)
    assert cautions(cfg)[1:] == ["the recording's prompts are others: context.system_prompt"]
