"""The statistics of evaluations: intervals, paired differences, pass@k. Numbers in, numbers out; no torch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist

import numpy as np

__all__ = ["Z95", "mean_interval", "paired_difference", "pass_at_k", "wilson_interval"]

#: Two-sided 95 % point of the normal distribution, 1.96.
Z95 = NormalDist().inv_cdf(0.975)


def wilson_interval(successes: int, episodes: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share (Wilson 1927), as (low, high) in [0, 1].

    It treats the episodes as independent: members of one group share their start, so count groups, or say so.

    Raises:
        ValueError: no episode, or more successes than episodes.
    """
    if episodes <= 0 or not 0 <= successes <= episodes:
        raise ValueError(f"an interval needs 0 <= successes <= episodes and an episode, got {successes} of {episodes}")
    share, z2 = successes / episodes, Z95 * Z95
    centre = share + z2 / (2 * episodes)
    half = Z95 * math.sqrt(share * (1 - share) / episodes + z2 / (4 * episodes**2))
    scale = 1 + z2 / episodes
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def mean_interval(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> tuple[float, float, float]:
    """Mean and the ends of its 95 % normal interval, as (mean, low, high).

    Args:
        values: one value per episode; at least two.
        clusters: one key per value; values of one key (members of a group, which share their start) may depend on each
            other. The variance is then the cluster-robust one, `G/(G-1) Σ_g (Σ_{i∈g} (x_i - mean))² / n²`, which is
            the usual `s²/n` where each value is its own cluster. None: all are independent.

    Raises:
        ValueError: fewer than two values or clusters, or unequal lengths.
    """
    column = np.asarray(values, dtype=np.float64)
    keys = range(len(column)) if clusters is None else list(clusters)
    if len(keys) != len(column):
        raise ValueError(f"{len(column)} values but {len(keys)} cluster keys")
    mean = float(column.mean()) if len(column) else math.nan
    sums: dict[Hashable, float] = {}
    for key, value in zip(keys, column - mean, strict=True):
        sums[key] = sums.get(key, 0.0) + float(value)
    count = len(sums)
    if count < 2:
        raise ValueError(f"an interval needs at least two independent values, got {count}")
    half = Z95 * math.sqrt(count / (count - 1) * sum(value * value for value in sums.values())) / len(column)
    return mean, mean - half, mean + half


def paired_difference(
    before: Sequence[float], after: Sequence[float], clusters: Sequence[Hashable] | None = None
) -> tuple[float, float, float]:
    """Mean of `after - before` over the same episodes, and the ends of its 95 % interval; see `mean_interval`.

    Args:
        before, after: one value per episode, in the same order; at least two.
        clusters: one key per episode; None: the pairs are independent.
    """
    if len(before) != len(after):
        raise ValueError(f"pairs need equally many values, got {len(before)} and {len(after)}")
    return mean_interval(np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64), clusters)


def pass_at_k(episodes: int, successes: int, k: int) -> float:
    """Chance that at least one of k episodes of one task succeeds, estimated without bias from n >= k of them.

    `1 - C(n-c, k) / C(n, k)` (Chen et al. 2021, arXiv:2107.03374, eq. 1), c successes among n episodes.

    Raises:
        ValueError: k outside 1..n, or c outside 0..n.
    """
    if not 1 <= k <= episodes or not 0 <= successes <= episodes:
        raise ValueError(f"pass@{k} needs 1 <= k <= episodes and 0 <= successes <= episodes: {successes} of {episodes}")
    return 1.0 - math.comb(episodes - successes, k) / math.comb(episodes, k)
