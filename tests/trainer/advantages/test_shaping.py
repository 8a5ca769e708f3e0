"""Reward normalisation and the overlong penalty, and the layout of episodes, by hand and against loops."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.trainer.advantages import shaping
from ragen.trainer.advantages.episodes import Episodes
from ragen.trainer.advantages.estimate import AdvantageSettings, shape_rewards
from ragen.trainer.advantages.turns import Turns
from tests.trainer.advantages import reference
from tests.trainer.advantages.episodes_for_tests import Episode, Turn, as_batch, random_episodes

LABELS = {"state": lambda e: e.group, "inductive": lambda e: e.tag, "batch": lambda e: 0}


@pytest.mark.parametrize("turn_scores", [False, True])
@pytest.mark.parametrize("sample_a_turn", [False, True])
@pytest.mark.parametrize("method", ["mean", "mean_std", "asym_clip"])
@pytest.mark.parametrize("grouping", LABELS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_returns_are_normalised_within_their_label(grouping, method, sample_a_turn, turn_scores, seed):
    episodes = random_episodes(seed)
    batch = as_batch(episodes, sample_a_turn=sample_a_turn, turn_scores=turn_scores, seed=seed)
    own = AdvantageSettings("gae", grouping=grouping, method=method)
    shaped = shape_rewards(own, batch.samples, batch.rewards)
    wanted = reference.normalised(episodes, LABELS[grouping], method)
    for episode, z in zip(episodes, wanted, strict=True):
        assert sum(batch.of(episode, shaped)) == pytest.approx(z, abs=1e-6)
    # nothing on a token that was not sampled
    assert not shaped[batch.samples.mask == 0].any()


def test_turn_rewards_are_divided_like_their_sum_and_the_rest_is_added_at_the_end():
    """Returns 4 and 0: mean 2, deviation 2. Turn rewards 3, 1 become 1.5, 0.5, and -1 at the end."""
    episodes = [
        Episode(0, 0, "T", [Turn([0.0, 0.0], 3.0, 0, 0), Turn([0.0], 1.0, 0, 0)]),
        Episode(0, 1, "T", [Turn([0.0], 0.0, 0, 0)]),
    ]
    batch = as_batch(episodes, sample_a_turn=True, turn_scores=True)
    shaped = shape_rewards(AdvantageSettings("gae", method="mean_std"), batch.samples, batch.rewards)
    assert batch.of(episodes[0], shaped) == pytest.approx([0, 1.5, -0.5], abs=1e-5)
    assert batch.of(episodes[1], shaped) == pytest.approx([-1.0], abs=1e-5)


def test_identity_is_the_very_same_tensor():
    batch = as_batch(random_episodes(1), sample_a_turn=False, turn_scores=True)
    assert shape_rewards(AdvantageSettings("gae"), batch.samples, batch.rewards) is batch.rewards


def test_an_unknown_method_or_mode_is_named():
    with pytest.raises(ValueError, match="method: 'std' is none of identity, mean, mean_std, asym_clip"):
        shaping.normalise_rewards(torch.ones(1, 1), torch.ones(1, 1), np.zeros(1), "std")
    with pytest.raises(ValueError, match="filter_loss_scaling: 'log' is none of none, linear, sqrt"):
        shaping.filter_scale(0.5, "log")


def test_overlong_penalty_by_hand():
    """Limit 4, the last half of it is the buffer: 1, 2, 3, 4 tokens cost 0, 0, half and all of 0.8."""
    episodes = [Episode(0, 0, "T", [Turn([0.0] * n, 1.0, 0, 1) for n in (1, 2, 3, 4)])]
    for sample_a_turn in (False, True):
        batch = as_batch(episodes, sample_a_turn=sample_a_turn, turn_scores=True)
        own = AdvantageSettings("grpo", overlong_share=0.5, overlong_penalty=0.8)
        shaped = shape_rewards(own, batch.samples, batch.rewards)
        assert batch.of(episodes[0], shaped) == pytest.approx([1, 0, 1, 0, 0, 0.6, 0, 0, 0, 0.2])


# --- layout ------------------------------------------------------------------------------------------------------


def test_rows_of_an_episode_are_joined_in_the_order_of_their_index():
    keys = ["u_0_1", "pad_0_0", "v_0_0", "u_0_10", "u_0_0", "u_1_0"]
    layout = Episodes(keys, [2, 1, 1, 1, 3, 2], [False, True] + [False] * 4, 3)
    tokens = torch.tensor([[11, 12, 0], [99, 0, 0], [41, 0, 0], [21, 0, 0], [1, 2, 3], [31, 32, 0]])
    assert layout.names == [("u", "0"), ("v", "0"), ("u", "1")]
    assert layout.groups.tolist() == [0, 1, 0] and layout.first_row.tolist() == [4, 2, 5]
    joined = layout.join(tokens)
    assert joined.tolist() == [[1, 2, 3, 11, 12, 21], [41, 0, 0, 0, 0, 0], [31, 32, 0, 0, 0, 0]]
    kept = tokens.clone()
    kept[1] = 0  # the sample that fills up the batch belongs to nobody
    assert layout.split(joined).tolist() == kept.tolist()


def test_turns_are_read_off_turn_ids():
    mask = torch.tensor([[1, 1, 0, 0, 1, 0, 1], [0, 1, 0, 0, 0, 0, 0]])
    ids = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 0]])
    turns = Turns(mask, ids)
    assert turns.count == 3 and turns.exists.tolist() == [[True] * 3, [True, False, False]]
    assert turns.is_start.int().tolist() == [[1, 0, 0, 0, 1, 0, 1], [0, 1, 0, 0, 0, 0, 0]]
    assert turns.is_end.int().tolist() == [[0, 1, 0, 0, 1, 0, 1], [0, 1, 0, 0, 0, 0, 0]]
    tokens = torch.tensor([[1.0, 2, 9, 9, 4, 9, 8], [9.0, 16, 0, 0, 0, 0, 0]])
    assert turns.at_start(tokens).tolist() == [[1, 4, 8], [16, 0, 0]]
    assert turns.at_end(tokens).tolist() == [[2, 4, 8], [16, 0, 0]]
    assert turns.spread(turns.at_end(tokens)).tolist() == [[2, 2, 0, 0, 4, 0, 8], [0, 16, 0, 0, 0, 0, 0]]


def test_neighbouring_turns_without_anything_between_are_still_two():
    """One sample a turn: joined, a turn's last token is followed by the next turn's first."""
    turns = Turns(torch.ones(1, 4, dtype=torch.int64), torch.tensor([[0, 0, 1, 2]]))
    assert turns.is_end.int().tolist() == [[0, 1, 1, 1]]
