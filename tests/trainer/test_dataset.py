"""The seed stream as a dataset."""

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.utils.dataset.rl_dataset import collate_fn

from ragen.trainer.dataset import EnvGroupDataset


def loader(rows=12):
    dataset = EnvGroupDataset(["train"], tokenizer=None, config=None, max_samples=rows)
    return StatefulDataLoader(dataset, batch_size=4, collate_fn=collate_fn)


def test_rows_are_their_numbers():
    assert [list(batch["row"]) for batch in loader()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_saved_position_continues_the_stream():
    first = loader()
    next(iter(first))
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert list(next(iter(second))["row"]) == [4, 5, 6, 7]


def test_a_length_is_required():
    with pytest.raises(ValueError, match="must be positive, got -1"):
        EnvGroupDataset(["train"], None, None)
