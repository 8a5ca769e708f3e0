"""What a run leaves behind: metrics once a step, panels across a resume."""

import json

import pytest

from ragen.trainer.panels import Panels
from ragen.trainer.run_logger import RunLogger, mark_finished, write_episodes
from tests.trainer.test_metrics import EPISODES


class Backend:
    def __init__(self):
        self.logged, self.finished = [], None

    def log(self, data, step):
        self.logged.append((step, dict(data)))

    def finish(self, exit_code):
        self.finished = exit_code


def steps(run_dir):
    return [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_each_step_is_written_once_and_every_backend_gets_it(tmp_path):
    backend = Backend()
    logger = RunLogger(backend, str(tmp_path), last_step=0)
    for step in (0, 1, 2, 2):
        logger.log({"loss": 1.5, "bad": float("nan")}, step=step)
    logger.finish(0)
    assert steps(tmp_path) == [0, 1, 2]
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1]) == {"step": 1, "loss": 1.5, "bad": None}
    assert backend.logged[0][0] == 0 and backend.finished == 0


def test_a_resumed_run_drops_what_it_will_do_again(tmp_path):
    first = RunLogger(Backend(), str(tmp_path), last_step=0)
    for step in range(5):
        first.log({"run": 1}, step=step)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "ru')  # cut by a crash
    second = RunLogger(Backend(), str(tmp_path), last_step=3)
    for step in (3, 4, 5):
        second.log({"run": 2}, step=step)
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5]
    runs = [json.loads(line)["run"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert runs == [1, 1, 1, 1, 2, 2]


def test_without_a_folder_only_the_backends_are_told(tmp_path):
    backend = Backend()
    RunLogger(backend, None, last_step=0).log({"a": 1}, step=0)
    assert backend.logged == [(0, {"a": 1})]


def test_episodes_are_written_with_their_step(tmp_path):
    write_episodes(tmp_path / "deep" / "3.jsonl", EPISODES, 3)
    lines = [json.loads(line) for line in (tmp_path / "deep" / "3.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [3] * len(EPISODES)
    assert [line["status"] for line in lines].count("failed") == 1
    assert list(tmp_path.glob("deep/.*")) == []


def test_the_marker_holds_the_summary(tmp_path):
    mark_finished(str(tmp_path), {"step": 3})
    assert json.loads((tmp_path / "finished.json").read_text()) == {"step": 3}


def panel(*solved):
    return {("A", 123 + i, 0): float(value) for i, value in enumerate(solved)}


def test_the_table_compares_the_first_panel_with_the_last_across_a_resume(tmp_path):
    Panels(str(tmp_path)).add(0, panel(0, 0, 0, 1))
    resumed = Panels(str(tmp_path))
    resumed.add(25, panel(0, 0, 1, 1))
    resumed.add(50, panel(1, 0, 1, 1))
    table = resumed.table()
    assert "after 0 and after 50 steps" in table
    assert "25.0%" in table and "75.0%" in table and "+50.0   [-6.6, +106.6]" in table


@pytest.mark.parametrize("added", [[], [0], [0, 0]])
def test_one_panel_is_no_comparison(tmp_path, added):
    panels = Panels(None)
    for step in added:
        panels.add(step, panel(0, 1))
    assert panels.table() == ""
