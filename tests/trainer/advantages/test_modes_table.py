"""The table estimator × context mode × turn scores, from recorded episodes to the advantage of every sampled token.

Episodes become trajectories whose contexts are written as each mode writes them, those become samples as the trainer
puts them into its batch, and what the estimators make of these is compared with the plain loops of `reference.py`,
which know neither contexts nor samples. Rewards are eighths, so that no sum of them is rounded.
"""

import numpy as np
import pytest
import torch

from ragen.llm_agent.contexts import WINDOW_MODES
from ragen.llm_agent.trajectory import Trajectory, TrajectoryBuilder, Turn, samples_of
from ragen.trainer.advantages.episodes import Episodes
from ragen.trainer.advantages.estimate import Samples, estimate
from ragen.trainer.advantages.table import supported
from ragen.trainer.rollout import sample_fields
from tests.trainer.advantages.episodes_for_tests import Episode, random_episodes
from tests.trainer.advantages.test_estimators import CASES, settings_of

#: What cannot use the rewards of single turns, in any mode.
RETURN_ONLY = {"grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"}
TABLE = [(case, mode, scores) for case in CASES for mode in WINDOW_MODES for scores in (False, True)]


def eighths(seed: int) -> list[Episode]:
    episodes = random_episodes(seed)
    for episode in episodes:
        for turn in episode.turns:
            turn.reward = round(8 * turn.reward) / 8
    return episodes


def trajectory(episode: Episode, mode: str) -> Trajectory:
    """The episode as it is recorded in `mode`; limited_multi_turn keeps one earlier turn."""
    builder = TrajectoryBuilder()
    replies: list[list[int]] = []
    for k, turn in enumerate(episode.turns):
        first = {"full": 0, "limited_multi_turn": max(0, k - 1), "single_turn": k}[mode]
        context = [10 + first]
        for j in range(first, k):
            context += [*replies[j], 20 + j]
        builder.read(context)
        replies.append([1000 * (k + 1) + i for i in range(len(turn.values))])
        builder.add_reply(replies[-1], [-0.5] * len(turn.values))
        builder.next_turn()
    return builder.build(
        turn_rewards=[turn.reward for turn in episode.turns],
        turns=[Turn(f"state {turn.state}", "r", (), turn.reward) for turn in episode.turns],
        tag=episode.tag, group=episode.group, member=episode.member, seed=0,
    )  # fmt: skip


def batch_of(episodes: list[Episode], mode: str, scores: bool, seed: int) -> tuple[Samples, torch.Tensor, list]:
    """Samples in random order, their rewards, and whose token each sampled one is: (episode, number in it)."""
    rng = np.random.default_rng(seed)
    rows = []
    for e, episode in enumerate(episodes):
        t = trajectory(episode, mode)
        values = iter(value for turn in episode.turns for value in turn.values)
        for index, sample in enumerate(samples_of(t, use_turn_scores=scores)):
            row = sample_fields(sample, t, f"g{episode.group}")
            sampled = row["response_mask"].bool()
            # elsewhere the critic says anything
            row["values"] = torch.tensor(
                [next(values) if one else rng.normal() for one in sampled], dtype=torch.float64
            )
            rows.append((f"g{episode.group}_{episode.member}_{index}", row, e))
    rows = [rows[i] for i in rng.permutation(len(rows))]
    keys = [key for key, _, _ in rows]
    width = max(len(row["responses"]) for _, row, _ in rows)

    def column(name: str, dtype: torch.dtype) -> torch.Tensor:
        padded = torch.zeros(len(rows), width, dtype=dtype)
        for i, (_, row, _) in enumerate(rows):
            padded[i, : len(row[name])] = row[name]
        return padded

    lengths = [len(row["responses"]) for _, row, _ in rows]
    samples = Samples(
        episodes=Episodes(keys, lengths, [False] * len(rows), width),
        mask=column("response_mask", torch.int64),
        turn_ids=column("turn_ids", torch.int64),
        tags=[],
        reply_limits=[],
        values=column("values", torch.float64),
        state_ids=column("state_ids", torch.int64),
    )
    order = sorted(range(len(rows)), key=lambda i: (rows[i][2], int(keys[i].rsplit("_", 1)[1])))
    return samples, column("rm_scores", torch.float64), [(rows[i][2], i) for i in order]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("case", "mode", "scores"), TABLE)
def test_a_cell_is_computed_exactly_or_refused_with_a_reason(case, mode, scores, seed):
    own = settings_of(case)
    reason = supported(own.name, mode, scores)
    assert (reason is not None) == (scores and case in RETURN_ONLY)
    if reason is not None:
        assert reason == f"{own.name} compares whole returns: rewards at turn ends would change nothing"
        return
    episodes = eighths(seed)
    samples, rewards, rows = batch_of(episodes, mode, scores, seed)
    several = [sum(e == index for e, _ in rows) for index in range(len(episodes))]
    turns = [len(episode.turns) for episode in episodes]
    assert several == [{"full": 1, "limited_multi_turn": max(1, k - 1), "single_turn": k}[mode] for k in turns]
    raw = samples.episodes.join(rewards).sum(dim=1)
    found = estimate(own, samples, rewards, raw_returns=raw)
    wanted = CASES[case][1](episodes, scores)
    for column, expected in zip(found, wanted, strict=True):
        if expected is None:  # returns, which nothing trains on without a critic
            continue
        got = [[] for _ in episodes]
        for e, i in rows:
            got[e] += column[i][samples.mask[i].bool()].tolist()
        assert [len(own) for own in got] == [len(own) for own in expected]
        np.testing.assert_allclose(np.concatenate(got), np.concatenate(expected), rtol=0, atol=1e-6)
        assert not column[samples.mask == 0].any()
