"""What is wrong with a warm start is told before anything is played: key, value and fix, one line each."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ragen.config.errors import ConfigError
from ragen.sft.__main__ import main
from ragen.sft.settings import load_config


def faults(*overrides):
    try:
        load_config("sft", overrides)
    except ConfigError as error:
        return [str(fault) for fault in error.faults]
    return []


def test_the_shipped_config_is_sound():
    assert faults() == []


#: Faults that are found together: overrides → a part of each one's line.
TOGETHER = [
    {
        "sft.epoch=2": "sft.epoch=2: no such key; did you mean sft.epochs?",
        "sft.optim.lr=fast": "sft.optim.lr=fast: a number is wanted",
        "sft.optim.lr_scheduler_type=linear": "unknown; known: constant, cosine",
        "sft.epochs=0": "sft.epochs=0: too small; the least is 1",
        "sft.save_freq=0": "sft.save_freq=0: steps between two cannot be 0; -1 turns it off",
        "sft.data.min_return=high": "sft.data.min_return=high: a number is wanted; or null",
        "sft.data.successful=often": "sft.data.successful=often: true or false is wanted",
        "trainer.nnodes=2": "trainer.nnodes=2: a warm start runs on one machine; set it to 1",
        "model_path=/nowhere/model": "model_path=/nowhere/model: no such folder",
    },
    {
        "sft.batch_size=30": "sft.batch_size=30: does not divide by micro_batch_size_per_gpu x devices = 8; try 32",
        "sft.data.episodes=16": "sft.data.episodes=16: less than one batch beside those held out; at least 60",
        "sft.data.seed=200": "sft.data.seed=200: the script would play levels of the validation panel; try 379",
        "sft.data.rendered=true": "sft.data.rendered=true: read only with a parquet",
    },
    {"sft.data.path=nowhere.jsonl": "sft.data.path=nowhere.jsonl: no such file or folder"},
]


@pytest.mark.parametrize("together", TOGETHER)
def test_each_fault_names_key_value_and_fix(together):
    found = faults(*together)
    for told in together.values():
        assert any(told in fault for fault in found), told
    assert len(found) == len(together)


def test_a_parquet_needs_messages_or_pairs(tmp_path):
    path = tmp_path / "mine.parquet"
    pq.write_table(pa.table({"question": ["1 + 1"], "answer": ["2"]}), path)
    (fault,) = faults(f"sft.data.path={path}")
    assert fault.endswith("has the columns answer, question; name one messages, or two prompt and response")


def test_the_command_line_ends_with_2_and_makes_no_folder(tmp_path, capsys):
    assert main(["--config-name", "sft", "sft.epochs=0", f"trainer.output_dir={tmp_path}"]) == 2
    assert capsys.readouterr().err == "sft.epochs=0: too small; the least is 1\n"
    assert list(tmp_path.iterdir()) == []
