"""The rows of the papers: each is a run that would start, with the settings that its paper states."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragen.config import load
from ragen.config.checks import check
from ragen.config.compose import CONFIG_DIR

ROWS = sorted(p.stem for p in (CONFIG_DIR / "paper").glob("ragen*.yaml"))
PAGE = Path(__file__).parents[2] / "docs" / "papers.md"

pytestmark = pytest.mark.wide


@pytest.mark.parametrize("row", ROWS)
def test_each_row_is_sound_with_and_without_its_filter(row: str, two_gpus: None):
    for choice in (row, f"[{row},no_filter]"):
        assert [str(fault) for fault in check(load("base", [f"+paper={choice}"]))] == []


@pytest.mark.parametrize("row", ROWS)
def test_each_row_plays_what_its_name_says(row: str):
    cfg = load("base", [f"+paper={row}"])
    second = row.startswith("ragen2")

    [tag] = cfg.es_manager.train.env_configs.tags
    assert tag.lower().removeprefix("coord").removeprefix("simple") == next(
        name for name in ("sokoban", "frozenlake", "bandit") if name in row.replace("_", "")
    )
    assert cfg.es_manager.val.env_configs.tags == [tag]
    assert tag.startswith("Coord") == second
    assert cfg.trainer.total_training_steps == (400 if second else 200)
    assert (cfg.algorithm.adv_estimator == "grpo") == ("grpo" in row)
    size = next((s for s in ("3b", "7b") if s in row), "0.5b")
    assert cfg.model_path == f"Qwen/Qwen2.5-{size.upper()}-Instruct"
    if second:
        assert cfg.agent_proxy.max_actions_per_turn == 2
        assert cfg.custom_envs.CoordFrozenLake.env_config.success_rate == 1


def test_more_actions_a_turn_come_with_a_longer_trajectory():
    cfg = load("base", ["+paper=ragen_sokoban_6_actions"])

    actions = cfg.agent_proxy.max_actions_per_turn
    assert cfg.custom_envs.SimpleSokoban.max_actions_per_traj == 5 * actions == 30


@pytest.mark.parametrize("row", ROWS)
def test_without_the_filter_every_group_is_kept(row: str):
    rollout = load("base", [f"+paper=[{row},no_filter]"]).actor_rollout_ref.rollout

    assert (rollout.rollout_filter_ratio, rollout.rollout_filter_type) == (1, "std")


@pytest.mark.parametrize("row", ROWS)
def test_the_page_tells_the_figures_of_each_row(row: str):
    [line] = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{row}` |")]
    header = (CONFIG_DIR / "paper" / f"{row}.yaml").read_text().splitlines()[1]

    figures = [word for word in header.split() if word.replace(".", "", 1).isdigit()]
    assert figures and all(figure in line for figure in figures if f"{figure} %" in header)
    assert header.endswith("Not run here.")
