"""Other rewards for recorded episodes."""

import numpy as np
import pytest

from ragen.eval import rescore as module
from ragen.eval.records import read_records, write_records
from ragen.eval.rescore import ScoreError, rescore


def per_turn(trajectory):
    """One for every turn that acted."""
    return [float(bool(turn.actions)) for turn in trajectory.turns]


def test_a_list_gives_each_turn_its_reward_and_keeps_the_tokens(played):
    new = rescore(played[0], per_turn)
    assert new.turn_rewards.tolist() == [turn.reward for turn in new.turns] == per_turn(played[0])
    np.testing.assert_array_equal(new.token_ids, played[0].token_ids)
    assert new.luck == played[0].luck and all(turn.format_penalty == 0 for turn in new.turns)


def test_a_number_is_the_new_return_on_the_last_turn(played):
    new = rescore(played[0], lambda t: 3)
    assert new.turn_rewards.tolist() == [0.0] * (new.num_turns - 1) + [3.0] and new.episode_return == 3.0


@pytest.mark.parametrize("scores", [[1.0] * 99, "high", None, float("nan"), [[1.0]]])
def test_anything_else_is_refused_with_the_episode(played, scores):
    with pytest.raises(ScoreError, match="SimpleSokoban seed 100 member 0"):
        rescore(played[0], lambda t: scores)


def test_the_command_writes_a_file_with_the_new_rewards(played, tmp_path, capsys):
    write_records(tmp_path / "a.jsonl", played, step=4)
    command = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl.gz")]
    assert module.main([*command, "--function", "tests.eval.test_rescore:per_turn"]) == 0
    assert "8 usable episodes, mean return" in capsys.readouterr().out
    read = list(read_records(tmp_path / "b.jsonl.gz"))
    assert [r.step for r in read] == [4] * 8 and read[0].trajectory.turn_rewards.tolist() == per_turn(played[0])


@pytest.mark.parametrize(
    "name", ["no.such.module:f", "tests.eval.test_rescore:nothing", "tests.eval.test_rescore", "a:"]
)
def test_a_function_that_cannot_be_found_is_named_and_nothing_is_written(played, tmp_path, name, capsys):
    write_records(tmp_path / "a.jsonl", played)
    assert module.main([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--function", name]) == 2
    assert f"--function {name!r}" in capsys.readouterr().err
    assert not (tmp_path / "b.jsonl").exists()
