"""`trainer.keep_best` on files that stand for checkpoints."""

import json
import types

import pytest

from ragen.trainer.trainer import BEST_FILE, RagenTrainerMixin


class Trainer:
    """The part of a trainer that keeps the best checkpoint."""

    def __init__(self, root, metric="val-env/A/success", action="warn"):
        self.config = types.SimpleNamespace(trainer=types.SimpleNamespace(default_local_dir=str(root)))
        self._own = types.SimpleNamespace(keep_best=metric, collapse_detection=types.SimpleNamespace(action=action))
        self.root, self.global_steps, self._saved_step = root, 0, 0

    def _save_checkpoint(self):
        folder = self.root / f"global_step_{self.global_steps}" / "actor"
        folder.mkdir(parents=True)
        (folder / "weights").write_text(str(self.global_steps))
        self._saved_step = self.global_steps

    def validate(self, step, value):
        self.global_steps = step
        RagenTrainerMixin._keep_best(self, {"val-env/A/success": value})


def best(root):
    return json.loads((root / "best" / BEST_FILE).read_text()), (root / "best" / "actor" / "weights").read_text()


def test_the_best_is_kept_and_beaten_only_by_a_better_one(tmp_path):
    trainer = Trainer(tmp_path)
    for step, value in ((0, 0.9), (10, 0.3), (20, 0.5), (30, 0.4)):
        trainer.validate(step, value)
    assert best(tmp_path) == ({"metric": "val-env/A/success", "value": 0.5, "step": 20}, "20")
    assert not (tmp_path / "global_step_30").exists()  # nothing is saved for a worse one


def test_a_run_that_the_collapse_watch_may_stop_keeps_its_start_until_it_is_beaten(tmp_path):
    trainer = Trainer(tmp_path, action="stop")
    trainer.validate(0, 0.4)
    trainer.validate(10, 0.4)
    assert best(tmp_path) == ({"metric": "val-env/A/success", "value": 0.4, "step": 0}, "0")
    trainer.validate(20, 0.5)
    assert best(tmp_path)[1] == "20"


def test_a_resumed_run_knows_what_it_has_to_beat(tmp_path):
    Trainer(tmp_path).validate(10, 0.5)
    resumed = Trainer(tmp_path)
    resumed.validate(20, 0.4)
    assert best(tmp_path)[1] == "10"
    resumed.validate(30, 0.6)
    assert best(tmp_path)[1] == "30"


def test_an_unknown_metric_is_named_with_those_there_are(tmp_path):
    with pytest.raises(KeyError, match="no validation metric 'val-env/B/success'; there are .*val-env/A/success"):
        Trainer(tmp_path, metric="val-env/B/success").validate(10, 0.5)
