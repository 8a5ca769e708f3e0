"""From the samples of a batch to whole episodes and back.

veRL's record of a sample is a row of response tokens under the key `{uid}_{member}_{index}`. `Episodes` puts the rows
of an episode one after another, in the order of their index: a row of all its response tokens in turn order. Estimators
work on those, and `split` carries the result back to the samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

__all__ = ["Episodes"]


class Episodes:
    """The layout of a batch: which sample belongs to which episode, and where in it.

    N samples, at most R response tokens each; E episodes, at most L tokens each; G groups.

    Args:
        keys: (N,) `{uid}_{member}_{index}`, in the order of the batch.
        lengths: (N,) response tokens of each sample.
        is_padding: (N,) True: the sample only fills up the batch and belongs to no episode.
        width: R, of the padded tensors that `join` gets.
    """

    def __init__(self, keys: Sequence[str], lengths: Sequence[int], is_padding: Sequence[bool], width: int):
        rows: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for row, key in enumerate(keys):
            if not is_padding[row]:
                uid, member, index = key.rsplit("_", 2)
                rows.setdefault((uid, member), []).append((int(index), row))
        #: (E,) The episode's group and member, in the order of their first sample in the batch.
        self.names = list(rows)
        #: (E,) int64. Number of each episode's group, in the order of the groups' first episode.
        numbers: dict[str, int] = {}
        self.groups = np.array([numbers.setdefault(uid, len(numbers)) for uid, _ in self.names], dtype=np.int64)
        sources = [
            np.concatenate([row * width + np.arange(lengths[row]) for _, row in sorted(samples)])
            for samples in rows.values()
        ]
        longest = max(map(len, sources), default=0)
        source = np.full((len(sources), longest), -1, dtype=np.int64)
        for episode, own in enumerate(sources):
            source[episode, : len(own)] = own
        self._source = torch.from_numpy(source)
        self._there = self._source >= 0
        self._shape = (len(keys), width)
        #: (E,) int64. A row of the batch that belongs to the episode: its first sample.
        self.first_row = np.array([min(samples)[1] for samples in rows.values()], dtype=np.int64)

    def join(self, samples: torch.Tensor) -> torch.Tensor:
        """(N, R) → (E, L), 0 beyond an episode's end."""
        gathered = samples.reshape(-1)[self._source.clamp(min=0)]
        return torch.where(self._there, gathered, torch.zeros_like(gathered))

    def split(self, episodes: torch.Tensor) -> torch.Tensor:
        """(E, L) → (N, R), 0 beyond a sample's end and in samples that only fill up the batch."""
        samples = episodes.new_zeros(self._shape[0] * self._shape[1])
        samples[self._source[self._there]] = episodes[self._there]
        return samples.reshape(self._shape)
