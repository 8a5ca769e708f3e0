"""Every estimator × context mode × turn scores: equal to a reference in plain loops, or refused with a reason."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.protocol import DataProto
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from ragen.llm_agent.contexts import WINDOW_MODES
from ragen.trainer.advantages.estimate import _ESTIMATORS, AdvantageSettings, estimate
from ragen.trainer.advantages.table import ESTIMATORS, estimator_name, supported
from tests.trainer.advantages import reference
from tests.trainer.advantages.episodes_for_tests import Episode, Turn, as_batch, random_episodes

#: Discounts that differ from each other and from 1, so that none can stand in for another.
DISCOUNTS = {"gamma": 0.9, "lam": 0.8, "high_level_gamma": 0.7}

#: Column of the table → settings, and the reference (turn scores on or off); returns only with a critic.
CASES = {
    "gae": ({}, lambda e, on: reference.gae(e, on, 0.9, 0.8)),
    "turn_gae": ({}, lambda e, on: reference.turn_gae(e, on, 0.7, 0.8)),
    "bi_level_gae": (
        {"adv_estimator": "gae", "bi_level_gae": True},
        lambda e, on: reference.bi_level_gae(e, on, 0.9, 0.8, 0.7),
    ),
    "grpo": ({}, lambda e, on: (reference.grpo(e, True), None)),
    "dr_grpo": (
        {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False},
        lambda e, on: (reference.grpo(e, False), None),
    ),
    "rloo": ({}, lambda e, on: (reference.rloo(e), None)),
    "reinforce_plus_plus": ({}, lambda e, on: (reference.reinforce_plus_plus(e, on, 0.9), None)),
    "reinforce_plus_plus_baseline": ({}, lambda e, on: (reference.reinforce_plus_plus_baseline(e), None)),
    "gigpo": ({"gigpo_step_weight": 0.5}, lambda e, on: (reference.gigpo(e, on, 0.7, 0.5, True), None)),
    "gigpo_without_std": (
        {"adv_estimator": "gigpo", "norm_adv_by_std_in_grpo": False},
        lambda e, on: (reference.gigpo(e, on, 0.7, 1.0, False), None),
    ),
}


def settings_of(case: str) -> AdvantageSettings:
    return AdvantageSettings(**{"adv_estimator": case, **DISCOUNTS, **CASES[case][0]})


def run(own: AdvantageSettings, batch, **more):
    raw = batch.samples.episodes.join(batch.rewards).sum(dim=1)
    return estimate(own, batch.samples, batch.rewards, raw_returns=raw, **more)


@pytest.mark.parametrize("turn_scores", [False, True])
@pytest.mark.parametrize("mode", WINDOW_MODES)
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_equals_the_reference_or_is_refused(case, mode, turn_scores, seed):
    own, plain = settings_of(case), CASES[case][1]
    if reason := supported(own.name, mode, turn_scores):
        assert turn_scores and "rewards at turn ends would change nothing" in reason
        return
    episodes = random_episodes(seed)
    batch = as_batch(episodes, sample_a_turn=mode != "full", turn_scores=turn_scores, seed=seed)
    advantages, returns = run(own, batch)
    wanted, wanted_returns = plain(episodes, turn_scores)
    for index, episode in enumerate(episodes):
        assert batch.of(episode, advantages) == pytest.approx(wanted[index], abs=1e-6)
        if wanted_returns is not None:
            assert batch.of(episode, returns) == pytest.approx(wanted_returns[index], abs=1e-6)
    assert not advantages[batch.samples.mask == 0].any() and not returns[batch.samples.mask == 0].any()


def test_the_table_knows_every_estimator_and_no_other():
    assert set(_ESTIMATORS) == {*ESTIMATORS, "bi_level_gae"}
    assert {settings_of(case).name for case in CASES} == set(_ESTIMATORS)
    assert supported("gea", "full", False).startswith("no such estimator")
    assert supported("gae", "fulll", False).startswith("no such context mode")
    refused = {name for name in _ESTIMATORS if supported(name, "full", True)}
    assert refused == {"grpo", "rloo", "reinforce_plus_plus_baseline"}
    assert not any(supported(name, mode, False) for name in _ESTIMATORS for mode in WINDOW_MODES)
    assert estimator_name("gae", True) == "bi_level_gae" and estimator_name("gae", False) == "gae"


@pytest.mark.parametrize("case", [case for case in CASES if not supported(settings_of(case).name, "full", False)])
def test_an_episode_counts_the_same_as_one_sample_and_as_many(case):
    """Also where it sits in the batch, and how many samples fill it up, changes nothing."""
    episodes = random_episodes(3)
    whole = as_batch(episodes, sample_a_turn=False, turn_scores=False, padding=0)
    cut = as_batch(episodes, sample_a_turn=True, turn_scores=False, seed=5, padding=3)
    one, many = run(settings_of(case), whole)[0], run(settings_of(case), cut)[0]
    for episode in episodes:
        assert whole.of(episode, one) == pytest.approx(cut.of(episode, many), abs=1e-12)


@pytest.mark.parametrize("estimator", ["gae", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_sample_an_episode_is_what_verls_trainer_computes(estimator, dtype):
    """On sampled tokens; elsewhere ours is 0."""
    from verl.trainer.config import AlgoConfig

    own = settings_of(estimator)
    batch = as_batch(random_episodes(7), sample_a_turn=False, turn_scores=estimator == "gae", padding=2)
    rewards = batch.rewards.to(dtype)
    values = batch.samples.values.to(dtype)
    columns = {"response_mask": batch.samples.mask, "token_level_rewards": rewards, "values": values}
    data = DataProto.from_single_dict({k: v.clone() for k, v in columns.items()})
    data.non_tensor_batch["uid"] = np.array([key.split("_")[0] for key in batch.keys], dtype=object)
    theirs = compute_advantage_for_multi_trajectories(
        data, batch.keys, estimator, gamma=own.gamma, lam=own.lam, config=AlgoConfig(gamma=own.gamma, lam=own.lam)
    )  # fmt: skip
    samples = batch.samples
    object.__setattr__(samples, "values", values)
    advantages, returns = estimate(own, samples, rewards, raw_returns=samples.episodes.join(rewards).sum(dim=1))
    sampled = samples.mask.bool()
    assert advantages.dtype == dtype
    tight = {"rtol": 0, "atol": 1e-6 if dtype == torch.float32 else 1e-12}
    torch.testing.assert_close(advantages[sampled], theirs.batch["advantages"][sampled], **tight)
    torch.testing.assert_close(returns[sampled], theirs.batch["returns"][sampled], **tight)


def two_turns() -> list[Episode]:
    """One group of two; both meet state 1 first, then states 2 and 3."""
    return [
        Episode(0, 0, "T", [Turn([1.0, 2.0], 0.0, 1, 0), Turn([3.0], 1.0, 2, 1)]),
        Episode(0, 1, "T", [Turn([0.0], 0.5, 1, 0), Turn([0.0, 1.0], -0.5, 3, 2)]),
    ]


def test_turn_gae_by_hand():
    """γ 1, λ 1: a turn's target is its return to go, 1, 1 and 0, -0.5; advantages before whitening 0, -2, 0, -0.5."""
    batch = as_batch(two_turns(), sample_a_turn=True, turn_scores=True)
    own = AdvantageSettings("turn_gae", high_level_gamma=1.0, lam=1.0)
    advantages, returns = run(own, batch)
    first, second = two_turns()
    assert batch.of(first, returns) == [1.0, 1.0, 1.0]
    assert batch.of(second, returns) == [0.0, -0.5, -0.5]
    raw = np.array([0, 0, -2, 0, -0.5, -0.5])
    white = (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8)
    assert batch.of(first, advantages) + batch.of(second, advantages) == pytest.approx(white.tolist())


def test_bi_level_gae_by_hand():
    """γ 1, λ 1, γ_h 0.5. First episode: turn values 0 + 0.5·1 and 1; second: 0.5 + 0.5·(-0.5) and -0.5."""
    batch = as_batch(two_turns(), sample_a_turn=False, turn_scores=True)
    own = AdvantageSettings("gae", bi_level_gae=True, gamma=1.0, lam=1.0, high_level_gamma=0.5)
    advantages, returns = run(own, batch)
    first, second = two_turns()
    assert batch.of(first, returns) == [0.5, 0.5, 1.0]
    assert batch.of(second, returns) == [0.25, -0.5, -0.5]
    raw = np.array([0.5 - 1, 0.5 - 2, 1 - 3, 0.25 - 0, -0.5 - 0, -0.5 - 1])
    white = (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8)
    assert batch.of(first, advantages) + batch.of(second, advantages) == pytest.approx(white.tolist())


def test_gigpo_by_hand():
    """γ 0.5: returns to go 0.5, 1 and 0.25, -0.5; only state 1 is met twice, with mean 0.375; returns 1 and 0."""
    batch = as_batch(two_turns(), sample_a_turn=True, turn_scores=True)
    own = AdvantageSettings("gigpo", high_level_gamma=0.5, gigpo_step_weight=2.0, norm_adv_by_std_in_grpo=False)
    advantages, _ = run(own, batch)
    first, second = two_turns()
    assert batch.of(first, advantages) == pytest.approx([0.5 + 2 * 0.125] * 2 + [0.5])
    assert batch.of(second, advantages) == pytest.approx([-0.5 - 2 * 0.125] + [-0.5] * 2)


def test_a_missing_critic_is_named():
    batch = as_batch(two_turns(), sample_a_turn=True, turn_scores=True)
    object.__setattr__(batch.samples, "values", None)
    with pytest.raises(ValueError, match="needs the critic's values, and the batch has none"):
        run(AdvantageSettings("gae"), batch)


# --- what is done to advantages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sample_a_turn", [False, True])
def test_advantages_are_scaled_as_asked(sample_a_turn):
    episodes = random_episodes(11)
    batch = as_batch(episodes, sample_a_turn=sample_a_turn, turn_scores=False)
    plain = run(AdvantageSettings("grpo"), batch)[0]
    lengths = [sum(len(turn.values) for turn in e.turns) for e in episodes]
    spreads = {g: np.std([e.total for e in episodes if e.group == g]) for g in range(4)}
    expected = {
        ("filter_loss_scaling", "linear"): [0.25] * len(episodes),
        ("filter_loss_scaling", "sqrt"): [0.5] * len(episodes),
        ("filter_loss_scaling", "none"): [1.0] * len(episodes),
        ("grpo_advantage_length_weight", True): [np.mean(lengths) / n for n in lengths],
        ("soft_advantage_reweight", True): [spreads[e.group] / max(spreads.values()) for e in episodes],
        ("zero_task_advantage", True): [0.0] * len(episodes),
    }
    for (key, value), weights in expected.items():
        scaled = run(AdvantageSettings("grpo", **{key: value}), batch, kept_share=0.25)[0]
        for episode, weight in zip(episodes, weights, strict=True):
            assert batch.of(episode, scaled) == pytest.approx([weight * a for a in batch.of(episode, plain)]), key


def test_with_length_weights_every_episode_weighs_the_same_under_token_mean():
    episodes = random_episodes(12)
    batch = as_batch(episodes, sample_a_turn=True, turn_scores=False)
    weighted = run(AdvantageSettings("grpo", grpo_advantage_length_weight=True), batch)[0]
    plain = run(AdvantageSettings("grpo"), batch)[0]
    ratios = {round(sum(batch.of(e, weighted)) / batch.of(e, plain)[0], 9) for e in episodes if batch.of(e, plain)[0]}
    assert len(ratios) == 1


def test_without_any_spread_soft_weights_are_zero():
    episodes = [Episode(0, m, "T", [Turn([0.0], 1.0, 0, 0)]) for m in range(3)]
    batch = as_batch(episodes, sample_a_turn=False, turn_scores=False)
    assert not run(AdvantageSettings("rloo", soft_advantage_reweight=True), batch)[0].any()
