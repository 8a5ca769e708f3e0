"""What fills up a batch, or leaves it, before an update: nested rows, with a dictionary in TransferQueue's place."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from ragen.trainer import batch_adjust
from ragen.trainer.batch_adjust import adjust, is_padding, spread_padding


class Queue:
    def __init__(self):
        self.rows: dict[str, dict] = {}

    def kv_batch_get(self, keys, partition_id):
        return list_of_dict_to_tensordict([self.rows[key] for key in keys])

    def kv_batch_put(self, keys, partition_id, fields, tags):
        for i, key in enumerate(keys):
            self.rows[key] = {name: fields[i][name] for name in fields.keys()}

    def kv_clear(self, keys, partition_id):
        for key in keys:
            del self.rows[key]


@pytest.fixture
def queue(monkeypatch):
    queue = Queue()
    monkeypatch.setattr(batch_adjust, "tq", queue)
    return queue


def batch_of(queue, episodes, multiple, order=None) -> KVBatchMeta:
    """Two samples of each episode, one advantage a token, and veRL's padding behind them."""
    rows = [(f"u{e}_0_{index}", {"env_group": e, "seq_len": 4 + index}) for e in range(episodes) for index in range(2)]
    rows = [rows[i] for i in order] if order is not None else rows
    for key, tag in rows:
        value = float(key[1]) + float(key[-1]) / 10
        queue.rows[key] = {"advantages": torch.full((tag["seq_len"],), value), "uid": key.split("_")[0]}
    pads = [(f"pad_{i}_0", {**rows[0][1], "is_padding": True}) for i in range(-len(rows) % multiple)]
    queue.rows |= {key: {"advantages": torch.zeros(1), "uid": "pad"} for key, _ in pads}
    keys, tags = zip(*rows, *pads, strict=True)
    return KVBatchMeta(partition_id="train", keys=list(keys), tags=list(tags), extra_info={"temperature": 1.0})


def rng():
    return np.random.default_rng(3)


@given(pads=st.lists(st.booleans(), min_size=1, max_size=60), ranks=st.integers(1, 3), window=st.integers(1, 20))
def test_every_mini_batch_holds_alike_much_padding(pads, ranks, window):
    pads = pads * ranks
    order = spread_padding(pads, ranks)
    size = len(pads) // ranks
    assert sorted(order) == list(range(len(pads)))
    for rank in range(ranks):
        share = order[rank * size : (rank + 1) * size]
        assert all(rank * size <= row < (rank + 1) * size for row in share)  # the ranks' loads stay as balanced
        rows = [row for row in share if not pads[row]]
        assert rows == sorted(rows)
        expected = window * sum(pads[row] for row in share) / size
        for i in range(size - window + 1):
            assert abs(sum(pads[row] for row in share[i : i + window]) - expected) < 1


def test_one_sample_too_many_does_not_get_a_mini_batch_of_its_own():
    pads = [False] * 9 + [True] * 7
    padded = [pads[row] for row in spread_padding(pads, 1)]
    assert [padded[i : i + 8].count(False) for i in (0, 8)] == [5, 4]


@pytest.mark.parametrize("mode", ["pad", "copy", "delete"])
def test_a_batch_that_divides_is_left_alone(queue, mode):
    batch = batch_of(queue, 4, 8)
    assert adjust(batch, mode, 8, rng()) is batch


def test_padding_stays_as_it_is(queue):
    batch = batch_of(queue, 3, 8)
    assert adjust(batch, "pad", 8, rng()) is batch and len(queue.rows) == 8


def test_copies_are_the_samples_as_they_are_and_are_not_counted(queue):
    batch = batch_of(queue, 3, 16)
    out = adjust(batch, "copy", 16, rng())
    assert len(out.keys) == 16 and set(queue.rows) == set(out.keys) and out.extra_info == {"temperature": 1.0}
    assert is_padding(out) == [False] * 6 + [True] * 10
    held = Counter()
    for key, tag in zip(out.keys, out.tags, strict=True):
        row = queue.rows[key]
        assert len(row["advantages"]) == tag["seq_len"] and row["uid"] == f"u{tag['env_group']}"
        held[float(row["advantages"][0])] += 1
    # six samples and ten copies: each sample is copied once before any is copied again
    assert sorted(held.values()) == [2, 2, 3, 3, 3, 3]


def test_deleted_samples_leave_the_queue_with_the_padding(queue):
    batch = batch_of(queue, 5, 4)
    out = adjust(batch, "delete", 4, rng())
    assert len(out.keys) == 8 and set(queue.rows) == set(out.keys) < set(batch.keys)
    assert not any(is_padding(out))


def test_a_batch_smaller_than_a_mini_batch_is_not_deleted(queue):
    batch = batch_of(queue, 3, 8)
    assert adjust(batch, "delete", 8, rng()) is batch


@pytest.mark.parametrize("mode", ["copy", "delete"])
def test_the_draw_does_not_depend_on_which_episode_ended_first(queue, mode):
    def trained(order):
        queue.rows.clear()
        out = adjust(batch_of(queue, 5, 4, order), mode, 4, rng())
        return sorted(float(queue.rows[key]["advantages"][0]) for key in out.keys)

    assert trained(range(10)) == trained([7, 2, 9, 0, 4, 1, 8, 3, 6, 5])
