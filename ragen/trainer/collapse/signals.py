"""What a step's episodes say about the policy's health: pure functions from trajectories to numbers.

| signal (`collapse/<tag>/` before it) | meaning |
|---|---|
| `return_spread` | standard deviation of raw returns within a group, mean over groups |
| `zero_spread_share` | share of groups whose members all have the same return |
| `flat_unsolved_share` | the same without the groups in which every member solved its task |
| `entropy` | nats per sampled token: mean negative log-probability of what was sampled |
| `reply_length` | sampled tokens per turn |
| `truncated_share` | share of replies that reached their token limit without an end token |
| `repeated_ngram_share` | share of the n-grams of replies that occurred before in the same reply |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ragen.llm_agent.trajectory import Trajectory
from ragen.trainer.rollout_filter import ZERO

__all__ = ["repeated_ngrams", "step_signals"]


def step_signals(
    trajectories: Sequence[Trajectory],
    *,
    reply_limits: Mapping[str, int],
    max_model_len: int,
    end_ids: Collection[int],
    ngram: int,
) -> dict[str, float]:
    """The signals of a set of episodes as `<tag>/<signal>`; see the table at the top of this file.

    Failed episodes enter nothing. Spreads need groups of two or more usable members; without any they are left out.

    Args:
        trajectories: one step's episodes of any tags; groups are told apart by `Trajectory.group`.
        reply_limits: tag → most new tokens of a turn.
        max_model_len: most tokens of a context, the reply included: a later turn may have less room than its limit.
        end_ids: ids that end a reply.
        ngram: n of `repeated_ngram_share`; a reply shorter than that has none.
    """
    by_tag: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.usable:
            by_tag[trajectory.tag].append(trajectory)
    found: dict[str, float] = {}
    for tag, episodes in by_tag.items():
        signals = _spreads(episodes) | _texts(episodes, reply_limits[tag], max_model_len, frozenset(end_ids), ngram)
        found.update({f"{tag}/{name}": value for name, value in signals.items()})
    return found


def repeated_ngrams(ids: np.ndarray, n: int) -> tuple[int, int]:
    """(repeated, all) n-grams of one reply: those that occurred before in it, and how many there are.

    Args:
        ids: (R,) integer.
    """
    if len(ids) < n:
        return 0, 0
    grams = np.lib.stride_tricks.sliding_window_view(ids, n)
    return len(grams) - len(np.unique(grams, axis=0)), len(grams)


def _spreads(episodes: Sequence[Trajectory]) -> dict[str, float]:
    groups: dict[int, list[Trajectory]] = defaultdict(list)
    for episode in episodes:
        groups[episode.group].append(episode)
    compared = [members for members in groups.values() if len(members) > 1]
    if not compared:
        return {}
    spreads = np.array([np.std([member.episode_return for member in members]) for members in compared])
    solved = np.array([all(member.metrics.get("success", 0.0) > 0 for member in members) for members in compared])
    flat = spreads <= ZERO
    return {
        "return_spread": float(spreads.mean()),
        "zero_spread_share": float(flat.mean()),
        "flat_unsolved_share": float((flat & ~solved).mean()),
    }


def _texts(
    episodes: Sequence[Trajectory], limit: int, max_model_len: int, end_ids: frozenset[int], ngram: int
) -> dict[str, float]:
    tokens, surprise = 0, 0.0
    replies, truncated, repeated, grams = 0, 0, 0, 0
    for episode in episodes:
        surprise -= float(episode.log_probs.sum(dtype=np.float64))
        starts, stops = episode.reply_starts(), episode.turn_ends() + 1
        for first, stop, context in zip(starts, stops, episode.context_starts, strict=True):
            ids = episode.token_ids[first:stop]
            replies += 1
            tokens += len(ids)
            truncated += len(ids) >= min(limit, max_model_len - (first - context)) and int(ids[-1]) not in end_ids
            again, all_of_them = repeated_ngrams(ids, ngram)
            repeated += again
            grams += all_of_them
    return {
        "entropy": surprise / tokens,
        "reply_length": tokens / replies,
        "truncated_share": truncated / replies,
        "repeated_ngram_share": repeated / max(1, grams),
    }
