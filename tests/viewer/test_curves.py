"""Training curves: seeds of one config together, differences listed, the page without network."""

import json

import numpy as np
import pytest
from omegaconf import OmegaConf

from ragen.viewer.__main__ import main
from ragen.viewer.curves import CurvesError, chosen_metrics, differences, experiments, load_run

pytest.importorskip("matplotlib")


def run(root, name, values, **config):
    folder = root / name
    folder.mkdir(parents=True)
    lines = [json.dumps({"step": i, "actor/entropy": v, "bad": None}) for i, v in enumerate(values)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    node = {"seed": 0, "lr": 1e-6, "trainer": {"output_dir": str(root), "n": 1}, **config}
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(node)))
    return folder


@pytest.fixture
def folders(tmp_path):
    return [
        run(tmp_path, "a-seed0-11111111", [1.0, 2.0, 3.0], seed=0),
        run(tmp_path, "a-seed1-22222222", [3.0, 4.0], seed=1),
        run(tmp_path, "b-seed0-33333333", [5.0], lr=1e-5, extra={"key": True}),
    ]


def test_seeds_of_one_config_are_one_curve_with_a_band(folders):
    first, second = experiments([load_run(folder) for folder in folders])
    assert (first.label, len(first.runs), second.label, len(second.runs)) == ("a", 2, "b", 1)
    steps, mean, low, high = first.band("actor/entropy")
    assert steps.tolist() == [0, 1, 2] and mean.tolist() == [2.0, 3.0, 3.0]
    np.testing.assert_allclose(high - mean, [2**0.5, 2**0.5, 0.0])  # of 1, 3 and of 2, 4: sd √2; a lone seed: none
    np.testing.assert_allclose(mean - low, high - mean)
    assert first.band("none") is None and "bad" not in first.runs[0].series


def test_the_config_difference_leaves_out_seeds_and_paths(folders):
    groups = experiments([load_run(folder) for folder in folders])
    assert differences(groups) == [("extra.key", ["(unset)", "True"]), ("lr", ["1e-06", "1e-05"])]
    assert differences(groups[:1]) == []


def test_equal_names_are_told_apart(tmp_path):
    made = [run(tmp_path / str(i), "a-seed0-11111111", [1.0], lr=i) for i in range(2)]
    assert [one.label for one in experiments([load_run(folder) for folder in made])] == ["a (A)", "a (B)"]


def test_metrics_are_chosen_by_pattern(folders):
    groups = experiments([load_run(folder) for folder in folders])
    assert chosen_metrics(groups, ["actor/*", "actor/entropy"]) == ["actor/entropy"]
    with pytest.raises(CurvesError, match="no run has a metric like x; there are actor/entropy"):
        chosen_metrics(groups, ["x"])


def test_runs_that_cannot_be_read(tmp_path, folders):
    with pytest.raises(CurvesError, match="holds no metrics.jsonl"):
        load_run(tmp_path)
    with (folders[0] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "act')  # a running training writes its last line
    assert max(load_run(folders[0]).series["actor/entropy"]) == 2
    (folders[1] / "metrics.jsonl").write_text("no\n")
    with pytest.raises(CurvesError, match="metrics.jsonl:1: no line of metrics"):
        load_run(folders[1])
    (folders[2] / "metrics.jsonl").write_text("")
    with pytest.raises(CurvesError, match="no step yet"):
        load_run(folders[2])


def test_the_page_is_self_contained_and_equal_for_equal_runs(folders, tmp_path, capsys):
    for name in ("one.html", "two.html"):
        assert main([*map(str, folders), "--curves", "--out", str(tmp_path / name)]) == 0
    assert "1 charts of 3 runs in 2 experiments" in capsys.readouterr().out
    page = (tmp_path / "one.html").read_text()
    assert page == (tmp_path / "two.html").read_text()
    assert page.count('class="chart"') == 1 and "1e-05" in page and str(tmp_path) not in page
    assert 'src="' not in page and "<script" not in page and "@import" not in page


def test_the_commands_fault(folders, tmp_path, capsys):
    assert main([str(folders[0]), "--curves", "--metrics", "x", "--out", str(tmp_path / "c.html")]) == 2
    assert "no run has a metric like x" in capsys.readouterr().err and not (tmp_path / "c.html").exists()
