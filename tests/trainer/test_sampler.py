"""The rollout filter at veRL's sampler door, on tags alone and without Ray."""

import pytest
from transfer_queue import KVBatchMeta

from ragen.trainer import sampler
from ragen.trainer.rollout_filter import SECOND
from ragen.trainer.sampler import RagenReplayBuffer, _Tally


@pytest.fixture
def cleared(monkeypatch):
    """Keys that left the queue."""
    keys = []
    monkeypatch.setattr(sampler.tq, "kv_clear", lambda keys, partition_id: cleared_keys.extend(keys))
    cleared_keys = keys
    return keys


def buffer(refill_fn=None, **changed) -> RagenReplayBuffer:
    settings = {
        "ratio": 0.25,
        "type": "std",
        **SECOND,
        "empty_stop_steps": 5,
        "min_members": 1,
        "max_batches": 1,
        **changed,
    }
    return RagenReplayBuffer(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=settings,
        refill_fn=refill_fn,
    )


def filtered(own: RagenReplayBuffer, given: KVBatchMeta) -> tuple[KVBatchMeta, dict]:
    tally = _Tally()
    return own._filter(given, tally), tally.metrics()


def batch(samples: int, **returns: list[float]) -> KVBatchMeta:
    """Each member of each group as this many samples; all tokens of length 10 and entropy as the return."""
    keys, tags = [], []
    for number, (uid, group) in enumerate(returns.items()):
        for member, value in enumerate(group):
            for index in range(samples):
                keys.append(f"{uid}_{member}_{index}")
                figures = {"episode_return": value, "episode_entropy": value, "episode_length": 10}
                tags.append({**figures, "env_group": number})
    return KVBatchMeta(partition_id="train", keys=keys, tags=tags)


@pytest.mark.parametrize("samples", [1, 3])
def test_whole_groups_are_kept_or_cleared_and_an_episode_counts_once(samples, cleared):
    # one long episode must not outweigh: group b's spread is that of 0 and 4
    given = batch(samples, a=[1.0, 1.0], b=[0.0, 4.0], c=[0.0, 1.0], d=[2.0, 2.0])
    own = buffer(ratio=0.5)
    chosen, metrics = filtered(own, given)
    assert {key.split("_")[0] for key in chosen.keys} == {"b", "c"}
    assert sorted(chosen.keys + cleared) == sorted(given.keys) and len(chosen.tags) == len(chosen.keys)
    assert metrics["rollout/groups"] == 4 and metrics["rollout/groups_kept"] == 2
    assert metrics["rollout/in_group_std"] == pytest.approx((0 + 2 + 0.5 + 0) / 4)
    assert metrics["rollout/chosen_in_group_std"] == pytest.approx((2 + 0.5) / 2)
    assert metrics["rollout/in_group_mean"] == pytest.approx((1 + 2 + 0.5 + 2) / 4)
    assert metrics["rollout/chosen_in_group_max"] == pytest.approx((4 + 1) / 2)
    assert (metrics["rollout/filter_score/max"], metrics["rollout/filter_score/min"]) == (2, 0)
    assert metrics["rollout/chosen_filter_score/mean"] == pytest.approx(1.25)


def test_episodes_of_different_numbers_of_samples_count_once_each(cleared):
    keys = ["a_0_0", "a_0_1", "a_0_2", "a_1_0", "b_0_0", "b_1_0"]
    returns = [3.0, 3.0, 3.0, 0.0, 0.0, 2.9]
    figures = {"episode_entropy": 0.0, "episode_length": 1, "env_group": 0}
    tags = [{"episode_return": r, **figures} for r in returns]
    chosen, _ = filtered(buffer(ratio=0.5), KVBatchMeta(partition_id="train", keys=keys, tags=tags))
    # by samples, b's spread 1.45 would beat a's 1.30; by episodes a has 1.5
    assert chosen.keys == ["a_0_0", "a_0_1", "a_0_2", "a_1_0"]


def test_an_empty_filter_keeps_nothing_and_clears_all(cleared):
    given = batch(2, a=[1.0, 1.0], b=[0.0, 0.0])
    own = buffer(type="largest")
    chosen, metrics = filtered(own, given)
    assert chosen.keys == [] and sorted(cleared) == sorted(given.keys)
    assert metrics["rollout/groups_kept"] == 0
    assert "rollout/chosen_in_group_std" not in metrics and metrics["rollout/in_group_std"] == 0


def test_other_metrics_come_from_the_tags(cleared):
    chosen, _ = filtered(buffer(strategy="top_k_abs", value=1, metric="entropy"), batch(1, a=[1.0, 2.0], b=[5.0, 5.0]))
    assert {key.split("_")[0] for key in chosen.keys} == {"b"}


def test_groups_with_too_few_usable_episodes_are_not_compared(cleared):
    chosen, metrics = filtered(buffer(ratio=1, min_members=2), batch(1, a=[9.0], b=[1.0, 2.0]))
    assert chosen.keys == ["b_0_0", "b_1_0"] and cleared == ["a_0_0"]
    assert metrics["rollout/groups"] == 1


def test_ties_go_to_the_earlier_group_of_the_seed_stream_whichever_ended_first(cleared):
    given = batch(1, a=[0.0, 1.0], b=[0.0, 1.0], c=[0.0, 1.0])
    late_first = KVBatchMeta(partition_id="train", keys=given.keys[::-1], tags=given.tags[::-1])
    for order in (given, late_first):
        chosen, _ = filtered(buffer(ratio=0.34), order)
        assert {key.split("_")[0] for key in chosen.keys} == {"a"}


# --- a whole step: waiting, and refills --------------------------------------------------------------------------


class Played:
    """Groups as they come out of the proxy: what `_wait` finds; each call asks for more of them."""

    def __init__(self, monkeypatch, own: RagenReplayBuffer, *waves: dict[str, list[float]]):
        self.waves, self.asked = list(waves), []
        monkeypatch.setattr(own, "_wait", self._wait)

    def _wait(self, partition_id, count):
        self.asked.append(count)
        wave = self.waves.pop(0)
        assert len(wave) == count
        return batch(1, **wave)


def test_without_refills_a_step_trains_on_fewer(cleared, monkeypatch):
    own = buffer(strategy="top_k", include_zero=False)
    played = Played(monkeypatch, own, {"a": [0.0, 1.0], "b": [1.0, 1.0]})
    chosen, metrics = own.sample(1, "train", 2)
    assert played.asked == [2] and chosen.keys == ["a_0_0", "a_1_0"]
    assert own.kept_share == 0.5 and metrics["rollout/groups_played"] == 2


def test_refills_play_on_until_the_batch_is_full(cleared, monkeypatch):
    refills = []
    own = buffer(refills.append, strategy="top_k", include_zero=False, max_batches=4)
    waves = {"a": [0.0, 1.0], "b": [1.0, 1.0], "c": [2.0, 2.0]}, {"d": [3.0, 3.0], "e": [0.0, 4.0]}, {"f": [1.0, 5.0]}
    played = Played(monkeypatch, own, *waves)
    chosen, metrics = own.sample(1, "train", 3)
    assert played.asked == [3, 2, 1] and refills == [2, 1]
    assert {key.split("_")[0] for key in chosen.keys} == {"a", "e", "f"}
    assert {key.split("_")[0] for key in cleared} == {"b", "c", "d"}
    assert own.kept_share == 0.5
    assert metrics["rollout/groups_played"] == 6 and metrics["rollout/groups_kept"] == 3
    assert metrics["rollout/in_group_std"] == pytest.approx((0.5 + 0 + 0 + 0 + 2 + 2) / 6)


def test_refills_stop_at_their_limit(cleared, monkeypatch, caplog):
    refills = []
    own = buffer(refills.append, strategy="top_k", include_zero=False, max_batches=2)
    flat = [1.0, 1.0]
    Played(monkeypatch, own, {"a": [0.0, 1.0], "b": flat, "c": flat}, {"d": flat, "e": flat})
    chosen, metrics = own.sample(1, "train", 3)
    assert refills == [2] and {key.split("_")[0] for key in chosen.keys} == {"a"}  # 5 played, 2 more would be 7 > 6
    assert "1 of 3 groups kept after 5 were played" in caplog.text


def test_wrong_settings_stop_the_start():
    with pytest.raises(ValueError, match="ratio: contradicts rollout_filter_value=0.9"):
        buffer(ratio=0.5, value=0.9)
