"""rollouts.jsonl: what is written is read back, and what is no record is refused by line."""

import dataclasses
import gzip
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ragen.eval import records
from ragen.eval.records import EpisodeRecord, RecordError, RecordWriter, read_records, write_records
from ragen.llm_agent.trajectory import Trajectory, Turn

DOCS = Path(__file__).parents[2] / "docs"


def assert_same(a, b):
    assert a.to_json() == b.to_json()


@pytest.mark.parametrize("name", ["a.jsonl", "deep/a.jsonl.gz"])
def test_episodes_come_back_as_they_were(played, tmp_path, name):
    write_records(tmp_path / name, played, step=7)
    read = list(read_records(tmp_path / name))
    assert [record.line for record in read] == list(range(1, len(played) + 1))
    assert {record.step for record in read} == {7}
    for record, trajectory in zip(read, played, strict=True):
        assert_same(record.trajectory, trajectory)
    assert list((tmp_path / name).parent.glob(".*")) == []


def test_compressed_files_are_equal_for_equal_episodes(played, tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_records(tmp_path / name, played)
    a, b = (gzip.decompress((tmp_path / name).read_bytes()) for name in ("a.jsonl.gz", "b.jsonl.gz"))
    assert a == b


def test_the_schema_knows_every_field_of_a_trajectory():
    fields = {field.encode_name for field in msgspec.structs.fields(EpisodeRecord)}
    own = {field.name for field in dataclasses.fields(Trajectory)}
    assert fields == own | {"schema_version", "step", "return", "advantages"}
    turn_fields = {field.encode_name for field in msgspec.structs.fields(records.TurnRecord)}
    assert turn_fields == {field.name for field in dataclasses.fields(Turn)}


def test_the_published_schema_is_this_one():
    assert json.loads((DOCS / "rollouts.schema.json").read_text()) == records.json_schema()


def test_luck_and_the_last_observation_are_recorded(played):
    assert len({t.luck for t in played}) == len(played)
    assert all(t.final_observation for t in played)


def test_a_record_of_version_3_says_where_its_contexts_begin(played, tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(played[0].to_json() | {"context_starts": None}) + "\n")
    with pytest.raises(
        records.RecordError, match="rollouts.jsonl:1: a record of schema_version 3 holds context_starts"
    ):
        list(records.read_records(path))


def test_a_record_of_version_1_is_read_without_what_it_lacks(played, tmp_path):
    old = played[0].to_json() | {"schema_version": 1}
    del old["luck"], old["final_observation"]
    (tmp_path / "old.jsonl").write_text(json.dumps(old) + "\n")
    (read,) = read_records(tmp_path / "old.jsonl")
    assert read.trajectory.luck is None and read.trajectory.final_observation is None and read.step is None


def drop(key):
    return lambda record: record.pop(key)


def put(key, value):
    return lambda record: record.update({key: value})


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (put("schema_version", 99), "schema_version 99 cannot be read; this release writes 3 and reads 1, 2, 3"),
        (drop("schema_version"), "schema_version None"),
        (drop("tag"), "missing required field `tag`"),
        (put("colour", 1), "unknown field `colour`"),
        (put("seed", "7"), r"Expected `int`, got `str` - at `\$.seed`"),
        (put("luck", -1), r"\$.luck"),
        (put("status", "lost"), r"\$.status"),
        (put("policy_mask", [2]), r"\$.policy_mask"),
        (lambda record: record["turns"][0].update(reward="1"), r"\$.turns\[0\].reward"),
        (lambda record: record["turns"][0].update(format_penalty=0.5), r"format_penalty"),
        (lambda record: record["log_probs"].pop(), "log_probs must have shape"),
        (put("advantages", [0.5]), "1 advantages for"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_number(played, tmp_path, spoil, says):
    record = played[1].to_json()
    spoil(record)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(played[0].to_json()) + "\n" + json.dumps(record) + "\n")
    with pytest.raises(RecordError, match=says) as caught:
        list(read_records(path))
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_cut_line_says_so(played, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(played[0].to_json())[:200])
    with pytest.raises(RecordError, match=":1: no JSON .*cut off"):
        list(read_records(path))


def test_files_that_cannot_be_opened(tmp_path):
    with pytest.raises(RecordError, match="No such file"):
        list(read_records(tmp_path / "none.jsonl"))
    (tmp_path / "no.jsonl.gz").write_bytes(b"text")
    with pytest.raises(RecordError, match="no whole gzip file"):
        list(read_records(tmp_path / "no.jsonl.gz"))


def test_a_stopped_file_is_continued_after_its_last_whole_line(played, tmp_path):
    path = tmp_path / "a.jsonl"
    with RecordWriter(path, append=True) as writer:
        writer.write(played[0])
    with path.open("a") as file:
        file.write('{"schema_version": 2, "ta')
    with RecordWriter(path, append=True) as writer:
        writer.write(played[1])
    assert [record.trajectory.member for record in read_records(path)] == [0, 1]


def test_continuing_a_compressed_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be continued"):
        RecordWriter(tmp_path / "a.jsonl.gz", append=True)


def test_an_error_leaves_no_file(played, tmp_path):
    with pytest.raises(RuntimeError), RecordWriter(tmp_path / "a.jsonl") as writer:
        writer.write(played[0])
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_advantages_are_kept_per_token(played, tmp_path):
    values = np.linspace(-1, 1, len(played[0].token_ids))
    with RecordWriter(tmp_path / "a.jsonl") as writer:
        writer.write(played[0], step=3, advantages=values)
        with pytest.raises(RecordError, match="2 advantages for"):
            writer.write(played[0], advantages=[1.0, 2.0])
    (read,) = read_records(tmp_path / "a.jsonl")
    np.testing.assert_allclose(read.advantages, values, rtol=1e-6)


def test_files_of_episodes_are_told_from_other_jsonl(played, tmp_path):
    write_records(tmp_path / "a.jsonl", played)
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n')
    (tmp_path / "empty.jsonl").write_text("")
    found = [records.holds_records(tmp_path / name) for name in ("a.jsonl", "metrics.jsonl", "empty.jsonl", "none")]
    assert found == [True, False, False, False]


def test_the_command_checks_files(played, tmp_path, capsys):
    write_records(tmp_path / "a.jsonl", played)
    (tmp_path / "b.jsonl").write_text("no\n")
    assert records.main([str(tmp_path / "a.jsonl")]) == 0
    assert "8 episodes, sound" in capsys.readouterr().out
    assert records.main([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]) == 1
    assert "b.jsonl:1: no JSON" in capsys.readouterr().err
