"""Random episodes, and the two ways in which they become samples, for the tests of advantages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ragen.trainer.advantages.episodes import Episodes
from ragen.trainer.advantages.estimate import Samples


@dataclass
class Turn:
    values: list[float]
    """The critic's value at each sampled token."""
    reward: float
    state: int
    context: int
    """Tokens that the policy read before this turn and after the last."""


@dataclass
class Episode:
    group: int
    member: int
    tag: str
    turns: list[Turn]

    @property
    def total(self) -> float:
        return sum(turn.reward for turn in self.turns)


def random_episodes(seed: int, *, groups: int = 4) -> list[Episode]:
    """A few groups of one to four episodes of one to four turns; states recur."""
    rng = np.random.default_rng(seed)
    return [
        Episode(
            group,
            member,
            tag=f"Tag{group % 2}",
            turns=[
                Turn(
                    values=rng.normal(size=rng.integers(1, 5)).tolist(),
                    reward=float(rng.choice([0.0, 1.0, -0.1, rng.normal()])),
                    state=int(rng.integers(3)) - 1,
                    context=int(rng.integers(3)),
                )
                for _ in range(rng.integers(1, 5))
            ],
        )
        for group in range(max(2, groups))
        for member in range(rng.integers(1, 5))
    ]


@dataclass
class Batch:
    samples: Samples
    rewards: torch.Tensor
    keys: list[str]

    def of(self, episode: Episode, column: torch.Tensor) -> list[float]:
        """What stands on the episode's sampled tokens, in order, read off its samples by hand."""
        own = sorted(
            (int(key.split("_")[2]), row)
            for row, key in enumerate(self.keys)
            if key.startswith(f"g{episode.group}_{episode.member}_")
        )
        mask = self.samples.mask
        return [float(column[row, t]) for _, row in own for t in range(mask.shape[1]) if mask[row, t]]


def as_batch(
    episodes: list[Episode], *, sample_a_turn: bool, turn_scores: bool, seed: int = 0, padding: int = 2
) -> Batch:
    """The samples of the episodes in random order, with some that only fill up the batch."""
    rng = np.random.default_rng(seed)
    rows = []
    for episode in episodes:
        tokens: list[list[dict]] = []
        for k, turn in enumerate(episode.turns):
            read = {"mask": 0, "turn": k, "reward": 0.0, "value": float(rng.normal()), "state": turn.state}
            own = [{**read, "mask": 1, "value": value} for value in turn.values]
            own[-1]["reward"] = turn.reward if turn_scores else 0.0
            if k == len(episode.turns) - 1 and not turn_scores:
                own[-1]["reward"] = episode.total
            tokens.append(own if sample_a_turn or k == 0 else [read] * turn.context + own)
        parts = tokens if sample_a_turn else [[token for part in tokens for token in part]]
        rows += [(f"g{episode.group}_{episode.member}_{index}", part, False) for index, part in enumerate(parts)]
    filler = {"mask": 0, "turn": 0, "reward": 0.0, "value": 9.0, "state": 0}
    rows += [(f"pad_{index}_0", [filler], True) for index in range(padding)]
    rows = [rows[i] for i in rng.permutation(len(rows))]
    width = max(len(part) for _, part, _ in rows)

    def column(name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(
            [[token[name] for token in part] + [0] * (width - len(part)) for _, part, _ in rows], dtype=dtype
        )

    keys = [key for key, _, _ in rows]
    layout = Episodes(keys, [len(part) for _, part, _ in rows], [pad for _, _, pad in rows], width)
    tags = {(f"g{e.group}", str(e.member)): e.tag for e in episodes}
    samples = Samples(
        episodes=layout,
        mask=column("mask", torch.int64),
        turn_ids=column("turn", torch.int64),
        tags=[tags[name] for name in layout.names],
        reply_limits=[4] * len(layout.names),
        values=column("value", torch.float64),
        state_ids=column("state", torch.int64),
    )
    return Batch(samples, column("reward", torch.float64), keys)
