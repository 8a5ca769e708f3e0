"""Metrics of hand-made episodes."""

import pytest
import torch

from ragen.llm_agent.trajectory import TrajectoryBuilder, Turn
from ragen.trainer.metrics import (
    episode_metrics,
    failure_summary,
    log_prob_difference,
    successes,
)


def episode(tag="A", group=0, member=0, rewards=(1.0,), success=0.0, status="finished", end="terminated"):
    builder, turns = TrajectoryBuilder(), []
    builder.add_context([101])
    for turn, reward in enumerate(rewards):
        if turn:
            builder.next_turn()
            builder.add_context([301])
        builder.add_reply([201, 202], [-0.5, -0.5])
        turns.append(Turn("s", "r", (), reward))
    return builder.build(
        turn_rewards=list(rewards), turns=turns, tag=tag, group=group, member=member, seed=group + 50, status=status,
        end_reason=end, metrics={"success": success},
    )  # fmt: skip


EPISODES = [
    episode(rewards=(-0.1, 10.0), success=1.0),
    episode(member=1, rewards=(-0.1,), end="max_turn", status="truncated"),
    episode(group=1, rewards=(-0.1,), end="max_turn", status="truncated"),
    episode(group=1, member=1, rewards=(0.0,), status="failed", end="env_timeout"),
    episode(tag="B", group=2, rewards=(0.0,)),
]


def test_metrics_are_per_tag_over_usable_episodes():
    metrics = episode_metrics(EPISODES, group_size=2)
    assert metrics["A/success"] == pytest.approx(1 / 3)
    assert metrics["A/return"] == pytest.approx((9.9 - 0.1 - 0.1) / 3)
    assert metrics["A/num_turns"] == pytest.approx(4 / 3)
    assert metrics["A/pass@2"] == 0.5
    assert metrics["B/pass@2"] == 0.0
    assert metrics["A/non-zero/return"] == 1.0 and metrics["B/non-zero/return"] == 0.0
    assert metrics["response_length"] == pytest.approx((4 + 2 + 2 + 2) / 4)


def test_failures_are_counted_and_enter_nothing_else():
    metrics = episode_metrics(EPISODES, group_size=2)
    assert (metrics["episodes"], metrics["failed"], metrics["failed/env_timeout"]) == (5.0, 1.0, 1.0)
    assert metrics["ended/max_turn"] == 2.0 and metrics["ended/terminated"] == 2.0
    assert failure_summary(EPISODES) == "1 A env_timeout"


def test_all_failed_still_gives_counts():
    metrics = episode_metrics([EPISODES[3]], group_size=1)
    assert metrics == {"episodes": 1.0, "failed/env_timeout": 1.0, "failed": 1.0}


def test_a_failed_episode_of_a_panel_counts_as_unsolved():
    assert successes(EPISODES[:1] + EPISODES[3:4]) == {("A", 50, 0): 1.0, ("A", 51, 1): 0.0}


def test_log_prob_difference_looks_at_sampled_tokens_alone():
    actor = torch.tensor([[-1.0, -2.0, -3.0]])
    rollout = torch.tensor([[-1.0, -9.0, -3.5]])
    metrics = log_prob_difference(actor, rollout, torch.tensor([[1, 0, 1]]))
    assert metrics["training/rollout_log_prob_diff_mean"] == pytest.approx(0.25)
    assert metrics["training/rollout_log_prob_diff_max"] == pytest.approx(0.5)
    assert log_prob_difference(actor, rollout, torch.zeros(1, 3)) == {}
