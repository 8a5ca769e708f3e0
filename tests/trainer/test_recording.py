"""Recorded groups in place of played ones: which, in what order, and how they are counted. No Ray."""

from dataclasses import replace

import numpy as np
import pytest

from ragen.eval.records import RecordError, RecordWriter
from ragen.llm_agent.trajectory import TrajectoryBuilder, Turn
from ragen.trainer.metrics import offline_metrics
from ragen.trainer.recording import Recording, load_groups


def episode(group=0, member=0, version=0, status="finished"):
    tokens = TrajectoryBuilder()
    tokens.add_context([100, 101])
    tokens.add_reply([200, 201], [-0.5, -0.25])
    return tokens.build(
        turn_rewards=[1.0], turns=[Turn("s", "r", (), 1.0)], tag="A", group=group, member=member, seed=group,
        status=status, model_version=(version, version),
    )  # fmt: skip


def groups(count, members=2):
    return tuple(tuple(episode(group, member) for member in range(members)) for group in range(count))


def dealt(recording, rows):
    """Number of the recorded group of each row; None: played."""
    return [None if (drawn := recording.draw(row)) is None else drawn.episodes[0].group for row in range(rows)]


@pytest.mark.parametrize(("ratio", "counts"), [(0, 0), (0.25, 2), (0.5, 4), (0.75, 6), (1.0, 8)])
def test_every_step_of_eight_rows_has_its_share(ratio, counts):
    recording = Recording(groups(100), ratio, seed=1)
    drawn = dealt(recording, 80)
    assert [sum(d is not None for d in drawn[step : step + 8]) for step in range(0, 80, 8)] == [counts] * 10


def test_a_ratio_is_taken_as_written():
    # as binary fractions 0.29 x 100 is below 29
    assert sum(d is not None for d in dealt(Recording(groups(50), 0.29, seed=1), 100)) == 29


def test_each_group_comes_once_a_pass_in_another_order():
    recording = Recording(groups(6), 1.0, seed=1)
    drawn = dealt(recording, 18)
    passes = [drawn[i : i + 6] for i in (0, 6, 12)]
    assert all(sorted(one) == list(range(6)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3
    assert [recording.draw(row).round for row in (0, 5, 6, 17)] == [0, 0, 1, 2]


def test_the_order_is_the_seeds_and_the_rows_alone():
    first, again, other = (Recording(groups(20), 0.5, seed=seed) for seed in (1, 1, 2))
    backwards = {row: again.draw(row) for row in reversed(range(40))}
    assert dealt(first, 40) == [None if (d := backwards[row]) is None else d.episodes[0].group for row in range(40)]
    assert dealt(first, 40) != dealt(other, 40)


def write(path, *episodes, step=None):
    with RecordWriter(path) as writer:
        for one in episodes:
            writer.write(one, step=step)
    load_groups.cache_clear()


def test_groups_are_whole_in_the_order_of_steps_and_members(tmp_path):
    write(tmp_path / "10.jsonl", episode(0, 1), episode(0, 0), step=10)
    write(tmp_path / "9.jsonl.gz", episode(0, 0), episode(1, 0), step=9)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')  # no episodes
    loaded = load_groups(str(tmp_path))
    assert [[(t.group, t.member) for t in group] for group in loaded] == [[(0, 0)], [(1, 0)], [(0, 0), (0, 1)]]


def test_failed_members_stay_out_and_so_do_groups_without_another(tmp_path):
    failed = [replace(episode(group, 0), status="failed", end_reason="env_raised") for group in (0, 1)]
    write(tmp_path / "r.jsonl", *failed, episode(1, 1))
    assert [[(t.group, t.member) for t in group] for group in load_groups(str(tmp_path / "r.jsonl"))] == [[(1, 1)]]


def test_two_runs_in_one_file_are_told_apart_from_one(tmp_path):
    write(tmp_path / "r.jsonl", episode(3, 1), episode(3, 1))
    with pytest.raises(RecordError, match=r"r.jsonl:2: A group 3 seed 3 has a member 1 already"):
        load_groups(str(tmp_path / "r.jsonl"))


def test_a_folder_without_episodes_is_named(tmp_path):
    load_groups.cache_clear()
    with pytest.raises(RecordError, match="no file of episodes in this folder"):
        load_groups(str(tmp_path))


def test_metrics_count_what_is_recorded_and_its_age():
    given = [(episode(version=2), episode(version=4)), (episode(version=6),)]
    assert offline_metrics(given, [0, 1], step=11) == {
        "offline/groups": 2, "offline/episodes": 3, "offline/pass": 2,
        "offline/age/mean": (8 + 6 + 4) / 3, "offline/age/max": 8,
    }  # fmt: skip
    assert offline_metrics([], [], step=3) == {}


def test_log_probs_of_the_recording_are_the_behaviour_policys():
    [[t]] = [list(group) for group in groups(1, members=1)]
    drawn = Recording((tuple([t]),), 1.0, seed=0).draw(0)
    assert np.array_equal(drawn.episodes[0].log_probs, np.array([0, 0, -0.5, -0.25], np.float32))
