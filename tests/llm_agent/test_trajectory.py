"""Trajectory: ids show who wrote them (prompt 100s, replies 200s, observations 300s)."""

import dataclasses
import json

import numpy as np
import pytest

from ragen.llm_agent.trajectory import Trajectory, TrajectoryBuilder, TrajectoryError, Turn, samples_of


def two_turns(**changes) -> Trajectory:
    builder = TrajectoryBuilder()
    builder.add_context([101, 102, 103])
    builder.add_reply([201, 202], [-0.1, -0.2])
    builder.next_turn()
    builder.add_context([301, 302])
    builder.add_reply([203], [-0.3])
    identity = {"tag": "T", "group": 0, "member": 0, "seed": 7, "metrics": {"success": 1.0}}
    built = builder.build(
        turn_rewards=[-0.1, 10.0],
        turns=[Turn("s0", "a", ("Up",), -0.1), Turn("s1", "b", ("Down",), 10.0, notes=("n",))],
        **identity,
    )
    return dataclasses.replace(built, **changes)


def test_mask_selects_exactly_the_sampled_tokens():
    trajectory = two_turns()
    assert trajectory.token_ids[trajectory.policy_mask].tolist() == [201, 202, 203]
    assert trajectory.turn_ids.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert trajectory.turn_ends().tolist() == [4, 7]
    assert trajectory.episode_return == pytest.approx(9.9)


def test_sample_starts_at_the_first_sampled_token_and_ends_at_the_last():
    [sample] = samples_of(two_turns(), use_turn_scores=False)
    assert sample.prompt_ids.tolist() == [101, 102, 103]
    assert sample.response_ids.tolist() == [201, 202, 301, 302, 203]
    assert sample.response_mask.tolist() == [1, 1, 0, 0, 1]
    np.testing.assert_allclose(sample.log_probs, [-0.1, -0.2, 0, 0, -0.3], rtol=1e-6)


def test_the_return_sits_on_the_last_sampled_token():
    [sample] = samples_of(two_turns(), use_turn_scores=False)
    np.testing.assert_allclose(sample.rewards, [0, 0, 0, 0, 9.9], rtol=1e-6)


def test_turn_scores_sit_on_each_turns_last_sampled_token():
    [sample] = samples_of(two_turns(), use_turn_scores=True)
    np.testing.assert_allclose(sample.rewards, [0, -0.1, 0, 0, 10], rtol=1e-6)


def test_response_mask_off_trains_everything_after_the_first_prompt():
    [sample] = samples_of(two_turns(), use_turn_scores=False, mask_all_after_prompt=True)
    assert sample.response_mask.tolist() == [1, 1, 1, 1, 1]


def test_trailing_context_of_an_abandoned_turn_is_no_part_of_the_sample():
    builder = TrajectoryBuilder()
    builder.add_context([101])
    builder.add_reply([201], [-0.5])
    builder.next_turn()
    builder.add_context([301, 302])
    trajectory = builder.build(
        turn_rewards=[1.0], turns=[Turn("s", "r", (), 1.0)], tag="T", group=0, member=0, seed=0, status="truncated"
    )
    [sample] = samples_of(trajectory, use_turn_scores=False)
    assert sample.response_ids.tolist() == [201]


def three_turns_in_two_contexts() -> Trajectory:
    """Turns 0 and 1 share a context; turn 2 reads another one, which holds reply 1 again."""
    builder = TrajectoryBuilder()
    builder.read([101, 102])
    builder.add_reply([201], [-0.1])
    builder.next_turn()
    builder.read([101, 102, 201, 301])
    builder.add_reply([202, 203], [-0.2, -0.3])
    builder.next_turn()
    builder.read([103, 202, 203, 302])
    assert builder.context == [103, 202, 203, 302]
    builder.add_reply([204], [-0.4])
    rewards = [1.0, 2.0, 4.0]
    return builder.build(
        turn_rewards=rewards, turns=[Turn("s", "r", (), r) for r in rewards], tag="T", group=0, member=0, seed=7
    )


def test_turns_that_share_a_context_are_one_sample():
    trajectory = three_turns_in_two_contexts()
    assert trajectory.context_starts.tolist() == [0, 0, 6]
    first, second = samples_of(trajectory, use_turn_scores=True)
    assert (first.prompt_ids.tolist(), second.prompt_ids.tolist()) == ([101, 102], [103, 202, 203, 302])
    assert (first.response_ids.tolist(), second.response_ids.tolist()) == ([201, 301, 202, 203], [204])
    assert (first.response_mask.tolist(), second.response_mask.tolist()) == ([1, 0, 1, 1], [1])
    assert (first.turn_ids.tolist(), second.turn_ids.tolist()) == ([0, 1, 1, 1], [2])
    assert (first.rewards.tolist(), second.rewards.tolist()) == ([1, 0, 0, 2], [4])
    np.testing.assert_allclose(second.log_probs, [-0.4], rtol=1e-6)


def test_the_return_of_several_samples_sits_on_the_episodes_last_token():
    first, second = samples_of(three_turns_in_two_contexts(), use_turn_scores=False)
    assert (first.rewards.tolist(), second.rewards.tolist()) == ([0, 0, 0, 0], [7])


def test_response_mask_off_leaves_each_samples_prompt_out():
    first, second = samples_of(three_turns_in_two_contexts(), use_turn_scores=True, mask_all_after_prompt=True)
    assert (first.response_mask.tolist(), second.response_mask.tolist()) == ([1, 1, 1, 1], [1])


@pytest.mark.parametrize("version", [1, 2])
def test_older_records_have_one_context(version):
    record = {**two_turns().to_json(), "schema_version": version}
    del record["context_starts"]
    assert Trajectory.from_json(record).context_starts.tolist() == [0, 0]


@pytest.mark.parametrize("trajectory", [two_turns(), three_turns_in_two_contexts()])
def test_json_round_trip_is_exact(trajectory):
    again = Trajectory.from_json(json.loads(json.dumps(trajectory.to_json())))
    for field in dataclasses.fields(Trajectory):
        left, right = getattr(trajectory, field.name), getattr(again, field.name)
        assert np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right, field.name


def test_another_schema_version_is_refused():
    with pytest.raises(TrajectoryError, match="schema_version 99"):
        Trajectory.from_json({**two_turns().to_json(), "schema_version": 99})


def test_a_failed_episode_has_no_sample():
    with pytest.raises(TrajectoryError, match="failed episode has no training sample"):
        samples_of(two_turns(status="failed"), use_turn_scores=False)


def at(array, index, value):
    changed = array.copy()
    changed[index] = value
    return changed


GOOD = two_turns()
BROKEN = [
    ({"turn_ids": GOOD.turn_ids[:-1]}, "turn_ids must have shape"),
    ({"policy_mask": GOOD.policy_mask.astype(np.int64)}, "policy_mask must be bool"),
    ({"token_ids": at(GOOD.token_ids, 2, -1)}, "non-negative"),
    ({"turn_ids": at(GOOD.turn_ids, 0, 1)}, "start at 0"),
    ({"turn_ids": at(GOOD.turn_ids, 6, 0)}, "start at 0 and rise"),
    ({"turn_ids": np.array([0, 0, 0, 0, 0, 2, 2, 2])}, "rise by at most one"),
    ({"policy_mask": at(GOOD.policy_mask, 0, True)}, "first token must not be the policy's"),
    ({"turns": GOOD.turns[:1]}, "1 turns as text but 2 turn rewards"),
    ({"turn_rewards": np.array([0.0, np.nan])}, "turn rewards must be finite"),
    ({"policy_mask": GOOD.turn_ids == 9, "log_probs": 0 * GOOD.log_probs}, "each hold sampled tokens"),
    ({"policy_mask": at(GOOD.policy_mask, 1, True)}, "must be one run"),
    ({"context_starts": np.array([0])}, "context starts for 2 turns"),
    ({"context_starts": np.array([0, 3])}, "a context must begin"),
    ({"context_starts": np.array([1, 1])}, "a context must begin"),
    ({"log_probs": at(GOOD.log_probs, 0, -1.0)}, "0 where the policy did not write"),
    ({"log_probs": at(GOOD.log_probs, 3, np.nan)}, "finite and at most 0"),
    ({"log_probs": at(GOOD.log_probs, 3, 0.5)}, "finite and at most 0"),
    ({"status": "done"}, "status must be one of"),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_each_invariant_is_checked_and_named(changes, message):
    with pytest.raises(TrajectoryError, match=rf"T seed 7 member 0: .*{message}"):
        two_turns(**changes).validate()


def test_an_episode_without_reply_may_only_be_failed():
    builder = TrajectoryBuilder()
    builder.add_context([101])
    identity = {"turn_rewards": [], "turns": [], "tag": "T", "group": 0, "member": 0, "seed": 0}
    assert builder.build(**identity, status="failed").num_turns == 0
    with pytest.raises(TrajectoryError, match="at least one reply"):
        builder.build(**identity, status="truncated")


def test_a_reply_needs_one_log_prob_per_id():
    with pytest.raises(TrajectoryError, match="as many log-probs"):
        TrajectoryBuilder().add_reply([201, 202], [-0.1])
