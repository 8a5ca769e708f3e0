"""Signals of hand-made episodes. Ids: prompt 100s, replies 200s (299 ends one), observations 300s."""

import numpy as np
import pytest

from ragen.llm_agent.trajectory import TrajectoryBuilder, Turn
from ragen.trainer.collapse.signals import repeated_ngrams, step_signals

END = 299


def episode(*replies, tag="A", group=0, member=0, returns=0.0, success=0.0, status="finished", log_prob=-0.5):
    """One turn for each reply; all of the return in the last."""
    builder = TrajectoryBuilder()
    builder.add_context([101, 102])
    for turn, ids in enumerate(replies):
        if turn:
            builder.next_turn()
            builder.add_context([301])
        builder.add_reply(list(ids), [log_prob] * len(ids))
    rewards = [0.0] * (len(replies) - 1) + [returns]
    return builder.build(
        turn_rewards=rewards, turns=[Turn("s", "r", (), reward) for reward in rewards], tag=tag, group=group,
        member=member, seed=50 + group, status=status, end_reason="terminated", metrics={"success": success},
    )  # fmt: skip


def signals(*episodes, limit=4, max_model_len=100, ngram=2):
    return step_signals(
        episodes, reply_limits={"A": limit, "B": limit}, max_model_len=max_model_len, end_ids={END}, ngram=ngram
    )


def test_spread_is_the_deviation_within_groups_and_solved_groups_are_told_apart():
    found = signals(
        episode([201, END], group=0, member=0, returns=0.0),
        episode([201, END], group=0, member=1, returns=2.0),  # std 1
        episode([201, END], group=1, member=0, returns=-1.0),
        episode([201, END], group=1, member=1, returns=-1.0),  # flat
        episode([201, END], group=2, member=0, returns=3.0, success=1.0),
        episode([201, END], group=2, member=1, returns=3.0, success=1.0),  # flat, but solved
        episode([201, END], group=3, member=0, returns=9.0),  # alone: nothing to compare
    )
    assert found["A/return_spread"] == pytest.approx(1 / 3)
    assert found["A/zero_spread_share"] == pytest.approx(2 / 3)
    assert found["A/flat_unsolved_share"] == pytest.approx(1 / 3)


def test_single_episodes_have_no_spread():
    assert not [name for name in signals(episode([201, END])) if "spread" in name or "flat" in name]


def test_entropy_weighs_tokens_and_length_counts_per_turn():
    found = signals(episode([201, 202, END], [203], log_prob=-0.5), episode([201, END], log_prob=-2.0))
    assert found["A/entropy"] == pytest.approx((4 * 0.5 + 2 * 2.0) / 6)
    assert found["A/reply_length"] == pytest.approx(6 / 3)


def test_a_reply_is_truncated_where_it_reached_its_limit_without_an_end():
    found = signals(episode([201, 202, 203, 204]), episode([201, 202, 203, END]), episode([201, 202, 203]))
    assert found["A/truncated_share"] == pytest.approx(1 / 3)


def test_a_full_context_is_a_limit_too():
    # two prompt tokens, so that a context of four leaves room for two
    assert signals(episode([201, 202]), max_model_len=4)["A/truncated_share"] == 1.0
    assert signals(episode([201, 202]), max_model_len=5)["A/truncated_share"] == 0.0


def test_ngrams_repeat_within_a_reply_not_across_replies():
    assert repeated_ngrams(np.array([201, 202, 201, 202, 201]), 2) == (2, 4)  # (1,2) (2,1) (1,2) (2,1)
    assert repeated_ngrams(np.array([201]), 2) == (0, 0)
    found = signals(episode([201, 202, 201, 202, 201], [201, 202, END]), limit=9)
    assert found["A/repeated_ngram_share"] == pytest.approx(2 / 6)


def test_a_context_written_anew_has_its_own_room():
    builder = TrajectoryBuilder()
    builder.add_context([101, 102])
    builder.add_reply([201, END], [-0.5] * 2)
    builder.next_turn()
    builder.new_context([301])
    builder.add_reply([202, 203], [-0.5] * 2)
    one = builder.build(
        turn_rewards=[0.0, 0.0], turns=[Turn("s", "r", (), 0.0)] * 2, tag="A", group=0, member=0, seed=50
    )
    # the second context is one token long: its reply fills a room of three tokens, and not one of four
    assert signals(one, max_model_len=3)["A/truncated_share"] == 0.5
    assert signals(one, max_model_len=4)["A/truncated_share"] == 0.0


def test_tags_are_apart_and_failed_episodes_enter_nothing():
    found = signals(
        episode([201, END]), episode([201, 202, END], tag="B", group=1), episode([201], tag="B", status="failed")
    )
    assert (found["A/reply_length"], found["B/reply_length"]) == (2.0, 3.0)
    assert signals(episode([201], status="failed")) == {}
