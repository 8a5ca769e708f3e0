"""The rollout filter at veRL's sampler door, on tags alone and without Ray."""

import pytest
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import replay_buffer

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


def buffer(refill_fn=None, threshold=None, **changed) -> RagenReplayBuffer:
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
        max_off_policy_threshold=threshold,
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

    def _wait(self, global_steps, partition_id, count, metrics):
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


# --- groups of several steps in the buffer ------------------------------------------------------------------------


class Queue:
    """TransferQueue's tags: groups `uid: (status, step)`, a sample each where the group has ended."""

    def __init__(self, monkeypatch, groups: dict[str, tuple[str, int]]):
        self.tags: dict[str, dict] = {}
        for number, (uid, (status, step)) in enumerate(groups.items()):
            self.tags[uid] = {"is_prompt": True, "status": status, "global_steps": step}
            if status == "finished":
                self.tags[f"{uid}_0_0"] = {
                    "episode_return": 1.0, "episode_entropy": 1.0, "episode_length": 1, "env_group": number,
                }  # fmt: skip
        for module in (sampler.tq, replay_buffer.tq):
            monkeypatch.setattr(module, "kv_list", lambda: {"train": dict(self.tags)})
            monkeypatch.setattr(module, "kv_clear", self.clear)

    def clear(self, keys, partition_id):
        for key in keys:
            self.tags.pop(key, None)


def test_the_oldest_groups_that_ended_are_trained_on_and_the_others_stay(monkeypatch):
    queue = Queue(monkeypatch, {"new": ("finished", 3), "old": ("finished", 2), "slow": ("running", 2)})
    own = buffer(ratio=1)
    chosen, _ = own.sample(3, "train", 1)
    assert chosen.keys == ["old_0_0"] and {"new", "slow", "new_0_0"} <= set(queue.tags)
    assert own.take_left() == {"old"} and own.take_left() == set()


def test_a_group_that_is_too_old_is_dropped_and_replaced(monkeypatch):
    queue = Queue(monkeypatch, {"stale": ("finished", 1), "fresh": ("finished", 3)})
    refills = []
    own = buffer(refills.append, ratio=1, threshold=2)
    chosen, metrics = own.sample(3, "train", 1)  # 3 - 1 + 1 = 3 versions > 2
    assert chosen.keys == ["fresh_0_0"] and refills == [1] and "stale_0_0" not in queue.tags
    assert metrics["training/off_policy/evicted_samples"] == 1
    assert own.take_left() == {"stale", "fresh"}


def test_a_group_that_failed_counts_as_played_and_is_not_replaced(monkeypatch):
    Queue(monkeypatch, {"broken": ("failure", 1)})
    refills = []
    chosen, metrics = buffer(refills.append, ratio=1).sample(1, "train", 1)
    assert chosen.keys == [] and refills == [] and metrics["rollout/groups_played"] == 1


def test_the_trainer_is_asked_between_two_looks(monkeypatch):
    queue = Queue(monkeypatch, {"late": ("running", 1)})
    own = buffer(ratio=1)
    looks = []

    def between():
        looks.append(1)
        if len(looks) == 3:
            queue.tags["late"]["status"] = "failure"

    own.before_poll, own.poll_interval = between, 0
    own.sample(1, "train", 1)
    assert len(looks) == 3


def test_wrong_settings_stop_the_start():
    with pytest.raises(ValueError, match="ratio: contradicts rollout_filter_value=0.9"):
        buffer(ratio=0.5, value=0.9)
