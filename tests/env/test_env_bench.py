"""The bench of environments: what it counts, the Sokoban comparison, the command line."""

import json

import pytest

from ragen.env import bench
from ragen.env.registry import EnvSpec


@pytest.mark.wide
def test_the_table_of_tags_and_the_levels_of_sokoban(capsys):
    assert bench.main(["SimpleSokoban", "Bandit", "--seconds", "0.02", "--levels", "30", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["tag"] for row in found["speed"]] == ["SimpleSokoban", "Bandit"]
    for row in found["speed"]:
        assert row["new_level_per_s"] > 50 and row["same_level_per_s"] > 50 and row["steps_per_s"] > 50
    # A member's reset finds the level of its group.
    assert found["speed"][0]["same_level_per_s"] > 1.3 * found["speed"][0]["new_level_per_s"]
    assert [row["size"] for row in found["sokoban"]] == list(bench.SOKOBAN)
    for row in found["sokoban"]:
        assert row["made"] == row["solvable"] == 30 and 1 < row["mean_moves"] <= row["longest_moves"] <= 10
        assert 0 < row["ours_ms"] <= row["gym_sokoban_ms"]


@pytest.mark.wide
def test_a_level_beyond_its_budget_is_counted_and_fails_the_bench(capsys, monkeypatch):
    monkeypatch.setattr(bench, "shortest_solution", lambda *level: [1] * 11)
    assert bench.main(["SimpleSokoban", "--seconds", "0.01", "--levels", "3"]) == 1
    assert " 3 " in capsys.readouterr().out


def test_what_lacks_a_package_is_left_out_with_the_line_that_installs_it(capsys, monkeypatch, tmp_path):
    (tmp_path / "needs_more.py").write_text("import no_such_package_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    entries = {"Lacking": {"env_type": "needs_more:Env"}, "Bandit": {"env_type": "bandit"}}
    monkeypatch.setattr(bench, "read_config", lambda *_: (entries, None))
    assert bench.main(["--seconds", "0.01"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "left out: Lacking:" in out and "pip install no-such-package-at-all" in out and "Bandit inline" in out


def test_steps_of_free_text_without_random_actions_are_not_measured():
    spec = EnvSpec(tag="Silent", env_type="tests.llm_agent.counting_env:SilentEnv")
    assert bench.measure(spec, 0.01).steps_per_s != bench.measure(spec, 0.01).steps_per_s  # NaN


def test_an_unknown_tag_ends_with_2(capsys):
    assert bench.main(["SimpleSokobn"]) == 2
    assert "did you mean 'SimpleSokoban'?" in capsys.readouterr().err


def test_help_shows_examples(capsys):
    with pytest.raises(SystemExit):
        bench.main(["--help"])
    assert "python -m ragen.env.bench SimpleSokoban Bandit" in capsys.readouterr().out
