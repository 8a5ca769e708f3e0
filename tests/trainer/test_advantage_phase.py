"""The trainer's advantage phase on real TensorDicts of nested rows, with a dictionary in TransferQueue's place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo import core_algos
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from ragen.config import load, to_verl
from ragen.config.compose import CONFIG_DIR
from ragen.llm_agent.trajectory import TrainingSample, Trajectory, TrajectoryBuilder, Turn, samples_of
from ragen.trainer import advantage_phase
from ragen.trainer.advantage_phase import AdvantagePhase
from ragen.trainer.advantages.estimate import AdvantageSettings
from ragen.trainer.rollout import sample_fields, sample_tag, state_numbers

#: uid, member → observations and rewards of the turns; three sampled tokens in a first turn, one in the others.
EPISODES = {
    ("a", 0): (["start", "left"], [0.0, 1.0]),
    ("a", 1): (["start", "right", "left"], [-0.1, 0.0, 0.0]),
    ("b", 0): (["start"], [0.5]),
    ("b", 1): (["start", "start"], [0.0, 0.25]),
}


class Queue:
    """Rows by key; what is fetched comes back nested, fields that no row has are left out."""

    def __init__(self):
        self.rows: dict[str, dict] = {}

    def kv_batch_get(self, keys, partition_id, select_fields):
        there = [field for field in select_fields if field in self.rows[keys[0]]]
        return list_of_dict_to_tensordict([{field: self.rows[key][field] for field in there} for key in keys])

    def kv_batch_put(self, keys, partition_id, fields: TensorDict):
        for field in fields.keys():
            for key, row in zip(keys, fields[field].unbind(), strict=True):
                self.rows[key][field] = row
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=self.tags)


def trajectory(uid: str, member: int) -> Trajectory:
    observations, rewards = EPISODES[uid, member]
    builder = TrajectoryBuilder()
    for turn in range(len(rewards)):
        if turn:
            builder.next_turn()
        builder.add_context([100 + turn] * 2)
        builder.add_reply([200] * (1 if turn else 3), [-0.5 - 0.1 * member] * (1 if turn else 3))
    turns = [Turn(o, "r", (), r) for o, r in zip(observations, rewards, strict=True)]
    return builder.build(
        turn_rewards=rewards, turns=turns, tag="FrozenLake", group=ord(uid), member=member, seed=1, metrics={}
    )


def turn_samples(t: Trajectory, use_turn_scores: bool) -> list[TrainingSample]:
    """One sample a turn: what the policy read before, then the turn's reply."""
    [whole] = samples_of(t, use_turn_scores=use_turn_scores)
    start = len(whole.prompt_ids)
    samples = []
    for turn in range(t.num_turns):
        (own,) = ((whole.turn_ids == turn) & (whole.response_mask == 1)).nonzero()
        cut = slice(own[0], own[-1] + 1)
        columns = (whole.response_ids, whole.response_mask, whole.turn_ids, whole.rewards, whole.log_probs)
        samples.append(TrainingSample(t.token_ids[: start + own[0]], *(column[cut] for column in columns)))
    return samples


class Phase(AdvantagePhase):
    """The mixin without a trainer around it."""

    def __init__(self, *overrides: str, kept_share: float = 1.0):
        self.config = to_verl(load("quickstart", ["model_path=/m", *overrides]))
        self.replay_buffer = SimpleNamespace(kept_share=kept_share)
        self.kl_ctrl_in_reward = core_algos.FixedKLController(0.5)


@pytest.fixture
def run(monkeypatch):
    """Run the phase over the episodes above; returns {uid, member: {field: values on sampled tokens}} and the queue."""

    def go(*overrides: str, sample_a_turn=False, turn_scores=False, kept_share=1.0, metrics=None):
        queue = Queue()
        keys, tags = [], []
        for uid, member in EPISODES:
            t = trajectory(uid, member)
            whole = samples_of(t, use_turn_scores=turn_scores)
            for index, sample in enumerate(turn_samples(t, turn_scores) if sample_a_turn else whole):
                keys.append(f"{uid}_{member}_{index}")
                tags.append(sample_tag(sample, t, step=1))
                row = sample_fields(sample, t, uid)
                generator = torch.Generator().manual_seed(len(keys))
                row["values"] = torch.rand(len(sample.response_ids), generator=generator)
                row["old_log_probs"] = row["rollout_log_probs"] - 0.1
                row["ref_log_prob"] = row["rollout_log_probs"] - 0.3
                queue.rows[keys[-1]] = {k: v for k, v in row.items() if isinstance(v, torch.Tensor)}
        # what veRL fills up with: one token without loss, and our own columns as long as the row it was copied from
        source = dict(queue.rows[keys[1]])
        single = {name: source[name][:1] * 0 for name in source if name not in ("turn_ids", "state_ids")}
        queue.rows["pad1_0_0"] = {**source, **single}
        keys, tags = ["pad1_0_0", *keys[::-1]], [{**tags[1], "is_padding": True}, *tags[::-1]]
        queue.tags = tags
        monkeypatch.setattr(advantage_phase, "tq", queue)
        phase = Phase(f"agent_proxy.use_turn_scores={str(turn_scores).lower()}", *overrides, kept_share=kept_share)
        found = {} if metrics is None else metrics
        out = phase._compute_advantage(KVBatchMeta(partition_id="train", keys=keys, tags=tags), found)
        assert out.keys == keys
        return phase, queue

    return go


def on_sampled_tokens(queue: Queue, field: str) -> dict[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = {episode: [] for episode in EPISODES}
    for key in sorted(queue.rows):
        uid, member, _ = key.split("_")
        if (uid, int(member)) in found:
            row = queue.rows[key]
            assert len(row[field]) == len(row["responses"])
            found[uid, int(member)] += row[field][row["response_mask"].bool()].tolist()
    return found


@pytest.mark.parametrize("sample_a_turn", [False, True])
def test_grpo_compares_episodes_whatever_their_samples(run, sample_a_turn):
    _, queue = run("algorithm.adv_estimator=grpo", sample_a_turn=sample_a_turn)
    found = on_sampled_tokens(queue, "advantages")
    # returns 1, -0.1 and 0.5, 0.25: half a difference over a sample deviation of a difference / sqrt(2)
    half = 0.5**0.5
    assert found["a", 0] == pytest.approx([half] * 4, abs=1e-5)
    assert found["a", 1] == pytest.approx([-half] * 5, abs=1e-5)
    assert found["b", 0] == pytest.approx([half] * 3, abs=1e-4)
    assert not queue.rows["pad1_0_0"]["advantages"].any() and len(queue.rows["pad1_0_0"]["advantages"]) == 1
    assert queue.rows["a_0_0"]["advantages"].dtype == torch.float32


@pytest.mark.wide
@pytest.mark.parametrize("sample_a_turn", [False, True])
@pytest.mark.parametrize("method", sorted(p.stem for p in (CONFIG_DIR / "method").glob("*.yaml")))
def test_each_preset_runs_through_the_phase(run, method, sample_a_turn):
    own = load("quickstart", [f"+method={method}"]).agent_proxy.use_turn_scores
    _, queue = run(f"+method={method}", sample_a_turn=sample_a_turn, turn_scores=own)
    found = on_sampled_tokens(queue, "advantages")
    assert any(any(values) for values in found.values())
    assert all(torch.isfinite(row["advantages"]).all() for row in queue.rows.values())


@pytest.mark.parametrize("turn_scores", [False, True])
def test_gae_on_one_sample_an_episode_is_verls(run, turn_scores):
    phase, queue = run(turn_scores=turn_scores)
    real = [key for key in queue.rows if not key.startswith("pad")]
    columns = queue.kv_batch_get(real, "train", ["rm_scores", "values", "response_mask"]).to_padded_tensor()
    theirs, returns = core_algos.compute_gae_advantage_return(
        columns["rm_scores"], columns["values"], columns["response_mask"], 1.0, 1.0
    )
    for row, key in enumerate(real):
        own = queue.rows[key]
        sampled = own["response_mask"].bool()
        length = len(sampled)
        torch.testing.assert_close(own["advantages"][sampled], theirs[row, :length][sampled], rtol=0, atol=1e-6)
        torch.testing.assert_close(own["returns"][sampled], returns[row, :length][sampled], rtol=0, atol=1e-6)


def test_values_chain_from_sample_to_sample(run):
    """γ = λ = 1: an episode's critic target is its return on every token, also in samples that hold no reward."""
    _, queue = run(sample_a_turn=True)
    returns = on_sampled_tokens(queue, "returns")
    for episode, (_, rewards) in EPISODES.items():
        assert returns[episode] == pytest.approx([sum(rewards)] * len(returns[episode]), abs=1e-6)


def test_kl_in_reward_and_normalisation_reach_the_rewards(run):
    metrics: dict = {}
    overrides = ["algorithm.adv_estimator=grpo", "algorithm.use_kl_in_reward=true"]
    _, queue = run(*overrides, "agent_proxy.reward_normalization.method=mean", metrics=metrics)
    rewards = on_sampled_tokens(queue, "token_level_rewards")
    # log-prob minus reference 0.2 on every sampled token, times 0.5; returns 1 and -0.1 less their mean
    assert rewards["a", 0] == pytest.approx([-0.1, -0.1, -0.1, 0.55 - 0.1], abs=1e-6)
    assert sum(rewards["a", 1]) == pytest.approx(-0.55 - 5 * 0.1, abs=1e-6)
    assert metrics["actor/reward_kl_penalty_coeff"] == 0.5
    assert any(key.startswith("rollout_corr/") for key in metrics)


def test_the_kept_share_scales_advantages(run):
    overrides = ["algorithm.adv_estimator=rloo"]
    _, plain = run(*overrides)
    _, scaled = run(*overrides, "actor_rollout_ref.actor.filter_loss_scaling=linear", kept_share=0.5)
    before, after = on_sampled_tokens(plain, "advantages"), on_sampled_tokens(scaled, "advantages")
    assert all(after[e] == pytest.approx([0.5 * a for a in before[e]]) for e in EPISODES) and any(before["a", 0])


def test_rollout_weights_are_written_where_asked_for(run):
    _, queue = run("algorithm.adv_estimator=grpo", "algorithm.rollout_correction.rollout_is=token")
    weights = on_sampled_tokens(queue, "rollout_is_weights")
    assert weights["a", 0] == pytest.approx([pytest.approx(torch.tensor(-0.1).exp().item())] * 4)


def test_states_are_told_apart_by_what_was_shown():
    first, second = state_numbers(trajectory("a", 0)), state_numbers(trajectory("a", 1))
    assert first[0] == second[0] and first[1] == second[2] and len({*first, *second}) == 3
    assert state_numbers(trajectory("b", 1))[0] == state_numbers(trajectory("b", 1))[1]


def test_tags_carry_what_the_filter_and_the_phase_read():
    t = trajectory("a", 1)
    tag = sample_tag(turn_samples(t, True)[1], t, step=3)
    assert tag["episode_return"] == pytest.approx(-0.1) and tag["episode_length"] == 5 and tag["response_len"] == 1
    assert tag["episode_entropy"] == pytest.approx(0.6) and tag["env_tag"] == "FrozenLake"
    assert tag["env_group"] == ord("a")


def test_every_setting_comes_from_the_config():
    node = Phase().config.ragen.advantages
    assert set(node) == set(AdvantageSettings.__dataclass_fields__)
    assert AdvantageSettings.from_nodes(OmegaConf.create({"adv_estimator": "rloo"})) == AdvantageSettings("rloo")
