"""Fills a batch up to what veRL's updates divide it by, or cuts it: `agent_proxy.batch_adjust_mode`.

veRL cuts a batch into mini-batches of a fixed number of samples, and fills it up with rows of one token without loss
until it divides (`pad`). `copy` and `delete` put repeated samples in their place, or take samples out, once advantages
are there: whatever the mode, each episode counts once in returns, group statistics, whitening and metrics.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

__all__ = ["adjust", "is_padding", "spread_padding"]


def is_padding(batch: KVBatchMeta) -> list[bool]:
    """Of each row: whether it only fills up the batch."""
    return [bool(tag.get("is_padding", False)) for tag in batch.tags]


def spread_padding(padding: Sequence[bool], ranks: int) -> list[int]:
    """The order of rows in which padding lies evenly in each rank's share, so that mini-batches hold alike much of it.

    veRL appends its padding, which would leave a last mini-batch with as little as one sample, and give that one sample
    a whole step of the optimiser.

    Args:
        padding: (N,) whether the row only fills up the batch. Rank r has the r-th N / ranks of them.
        ranks: data-parallel ranks.

    Returns:
        (N,) indices of the old order. Any w rows in a row of a rank's n, p of them padding, hold w p / n of it, rounded
        up or down; the other rows keep their order.
    """
    size = len(padding) // ranks
    order: list[int] = []
    for begin in range(0, len(padding), size):
        share = range(begin, begin + size)
        fillers = [row for row in share if padding[row]]
        rows = iter([row for row in share if not padding[row]])
        pads = iter(fillers)
        count = len(fillers)
        order += [next(pads) if (i + 1) * count // size > i * count // size else next(rows) for i in range(size)]
    return order


def adjust(batch: KVBatchMeta, mode: str, multiple: int, rng: np.random.Generator) -> KVBatchMeta:
    """A batch of the same partition, a multiple of `multiple` long, in any order.

    Args:
        batch: as many real rows as there are and padding up to a multiple; advantages are computed.
        mode: `pad`: as it is. `copy`: in place of padding, further rows of samples that are drawn among all, none twice
            before all were drawn; their tags say `is_padding`, since they are not to be counted. `delete`: no padding,
            and samples drawn among all are taken out; where none would be left, as it is.
        multiple: what the number of rows must divide by.
        rng: draws by the samples' order in the seed stream, not by the batch's.
    """
    padding = is_padding(batch)
    real = sorted((row for row, pad in enumerate(padding) if not pad), key=lambda row: _place(batch, row))
    surplus = len(real) % multiple
    if mode == "pad" or not surplus or (mode == "delete" and len(real) < multiple):
        return batch
    pads = [key for key, pad in zip(batch.keys, padding, strict=True) if pad]
    if mode == "delete":
        out = {real[i] for i in rng.choice(len(real), surplus, replace=False)}
        kept = [row for row in range(len(batch.keys)) if not padding[row] and row not in out]
        tq.kv_clear(keys=[*pads, *(batch.keys[row] for row in sorted(out))], partition_id=batch.partition_id)
        return _with(batch, [batch.keys[row] for row in kept], [batch.tags[row] for row in kept])
    missing = multiple - surplus
    rounds = -(-missing // len(real))
    drawn = [real[i] for _ in range(rounds) for i in rng.permutation(len(real))][:missing]
    fetched = tq.kv_batch_get(keys=[batch.keys[row] for row in dict.fromkeys(drawn)], partition_id=batch.partition_id)
    source = {row: fetched[i] for i, row in enumerate(dict.fromkeys(drawn))}
    uid = f"copy{uuid.uuid4().hex}"
    keys = [f"{uid}_{i}_0" for i in range(missing)]
    tags = [{**batch.tags[row], "is_padding": True} for row in drawn]
    fields = list_of_dict_to_tensordict([{name: source[row][name] for name in source[row].keys()} for row in drawn])
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields, tags=tags)
    tq.kv_clear(keys=pads, partition_id=batch.partition_id)
    own = [row for row, pad in enumerate(padding) if not pad]
    return _with(batch, [batch.keys[row] for row in own] + keys, [batch.tags[row] for row in own] + tags)


def _place(batch: KVBatchMeta, row: int) -> tuple[int, int, int]:
    _, member, index = batch.keys[row].rsplit("_", 2)
    return batch.tags[row]["env_group"], int(member), int(index)


def _with(batch: KVBatchMeta, keys: list[str], tags: list[dict]) -> KVBatchMeta:
    return KVBatchMeta(
        partition_id=batch.partition_id, keys=keys, tags=tags, fields=batch.fields, extra_info=batch.extra_info
    )
