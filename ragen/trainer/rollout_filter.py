"""The rollout filter: which groups of a step are trained on. Pure functions over raw returns; imports no torch.

StarPO-S (RAGEN, arXiv:2504.20073, section 3.3) keeps the groups whose members differ most in their returns: where all
end alike there is nothing to compare. Two vocabularies of keys say how many groups are kept; `GroupFilter.from_keys`
reads both and refuses a mixture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ["METRICS", "GroupFilter", "Member", "group_score", "select_groups"]

#: Scores up to this count as zero where `rollout_filter_include_zero` is false.
ZERO = 1e-10

#: Types of the first vocabulary: ratio and type.
RATIO_TYPES = ("std", "std_rev", "max_mean")
#: Types of the second one: strategy, value, metric and type.
DIRECTIONS = ("largest", "smallest")
STRATEGIES = ("top_p", "top_k", "top_k_abs", "min_p")
PROB_MODES = ("linear", "softmax")

#: The second vocabulary's keys with their neutral values: one that differs puts the second vocabulary in force.
SECOND = {
    "strategy": "top_p",
    "value": 1.0,
    "metric": "reward_variance",
    "include_zero": True,
    "top_p_prob_mode": "linear",
    "selection_eps": 0.01,
}
#: Ratios that do not contradict the second vocabulary: the default, and 1 (off).
_NEUTRAL_RATIOS = (0.25, 1)


class Member(NamedTuple):
    """What the filter knows of one episode, however many samples it became."""

    episode_return: float
    """The raw, undiscounted return."""
    entropy: float = 0.0
    """Nats per sampled token: the mean negative log-probability of what was sampled, which estimates the entropy."""
    length: float = 0.0
    """Sampled tokens."""


def _mean(values: np.ndarray) -> float:
    return float(values.mean())


def _spread(values: np.ndarray) -> float:
    return float(values.std())


#: Name of a score → (column of `Member`, how a group's members become one number). Spreads are population standard
#: deviations.
METRICS = {
    "reward_variance": ("episode_return", _spread),
    "reward": ("episode_return", _mean),
    "reward_sum": ("episode_return", lambda values: float(values.sum())),
    "entropy": ("entropy", _mean),
    "entropy_variance": ("entropy", _spread),
    "length": ("length", _mean),
    # how far the best member lies above the group's mean
    "max_mean": ("episode_return", lambda values: float(values.max() - values.mean())),
}


def group_score(members: Sequence[Member], metric: str) -> float:
    """One group's score under a name of `METRICS`; at least one member."""
    column, reduce = METRICS[metric]
    return reduce(np.array([getattr(member, column) for member in members], dtype=np.float64))


@dataclass(frozen=True)
class GroupFilter:
    """How groups are chosen, in one vocabulary."""

    strategy: str
    """top_p, top_k, top_k_abs, min_p, or `ratio`: the share `int(value * groups)` and no group where that is 0."""
    value: float
    metric: str = "reward_variance"
    largest: bool = True
    """True: high scores first."""
    include_zero: bool = True
    """False: groups with a score up to `ZERO` are dropped first; shares are then of the groups left."""
    softmax: bool = False
    """top_p alone: mass is the softmax of the scores; False: the scores themselves."""
    eps: float = 0.01
    """top_p with linear mass alone: how far below its share the sum may stay."""

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any]) -> GroupFilter:
        """The filter that the keys `rollout_filter_*` ask for.

        The second vocabulary is in force where one of its keys differs from `SECOND` or the type is a direction.

        Args:
            keys: the keys without their prefix: ratio, type, and those of `SECOND`.

        Raises:
            ValueError: an unknown name, a value out of range or keys of both vocabularies. The message reads
                "key: fault: fix", the key without its prefix.
        """
        ratio, kind = keys["ratio"], keys["type"]
        if kind not in RATIO_TYPES + DIRECTIONS:
            raise ValueError(f"type: unknown: {', '.join(RATIO_TYPES)} go with a ratio, {', '.join(DIRECTIONS)} with a "
                             "strategy")  # fmt: skip
        changed = [key for key, neutral in SECOND.items() if keys[key] != neutral]
        if not changed and kind in RATIO_TYPES:
            if not 0 < ratio <= 1:
                raise ValueError("ratio: out of range: above 0 and at most 1")
            metric = "max_mean" if kind == "max_mean" else "reward_variance"
            return cls("ratio", float(ratio), metric, largest=kind != "std_rev")
        other = f"rollout_filter_{changed[0]}={keys[changed[0]]}" if changed else f"rollout_filter_type={kind}"
        if ratio not in _NEUTRAL_RATIOS:
            raise ValueError(f"ratio: contradicts {other}: set it to 1, or leave the other out")
        if kind in ("std_rev", "max_mean"):
            raise ValueError(f"type: contradicts {other}: set largest or smallest, or leave the other out")
        _check_second(keys)
        return cls(
            keys["strategy"],
            float(keys["value"]),
            keys["metric"],
            largest=kind != "smallest",
            include_zero=bool(keys["include_zero"]),
            softmax=keys["top_p_prob_mode"] == "softmax",
            eps=float(keys["selection_eps"]),
        )

    @property
    def keeps_all(self) -> bool:
        """Whether no group is ever dropped, whatever its score."""
        return self.include_zero and self.strategy in ("ratio", "top_k") and self.value == 1

    def fixed_count(self, groups: int) -> int | None:
        """How many of `groups` are kept, or None where that depends on their scores."""
        if not self.include_zero or self.strategy in ("top_p", "min_p"):
            return None
        return _count(self, groups)


def _check_second(keys: Mapping[str, Any]) -> None:
    known = {"strategy": STRATEGIES, "metric": [m for m in METRICS if m != "max_mean"], "top_p_prob_mode": PROB_MODES}
    for key, names in known.items():
        if keys[key] not in names:
            raise ValueError(f"{key}: unknown: one of {', '.join(names)}")
    value = keys["value"]
    if keys["strategy"] == "top_k_abs":
        if value < 1 or value != int(value):
            raise ValueError("value: top_k_abs wants a number of groups: a whole number of at least 1")
    elif not 0 < value <= 1:
        raise ValueError(f"value: {keys['strategy']} wants a share: above 0 and at most 1")
    if keys["selection_eps"] < 0:
        raise ValueError("selection_eps: out of range: at least 0")


def select_groups(scores: Mapping[str, float], chosen: GroupFilter) -> list[str]:
    """The groups to train on; possibly none.

    With groups in order of score, best first:

    * `ratio`: the first `int(value * groups)`.
    * `top_k`: the same, but at least one; `top_k_abs`: the first `value`.
    * `top_p`, linear: one after another while their sum is below `value * total - eps`. Scores of 0 or less have no
      mass and are never taken, so that none may be kept.
    * `top_p`, softmax: the fewest whose softmax mass is at least `value`; at least one. `smallest` takes the softmax
      of the negative scores.
    * `min_p`: those with a score of at least `value` times the best; `smallest`: at most the least over `value`. Where
      the best is not positive there is nothing to scale: those that equal it.

    Args:
        scores: group → score (`group_score`).
        chosen: how to choose.

    Returns:
        The kept groups, in the order of `scores`. Ties go to the earlier group.
    """
    groups = [group for group, score in scores.items() if chosen.include_zero or score > ZERO]
    if not groups:
        return []
    values = np.array([scores[group] for group in groups], dtype=np.float64)
    ranked = np.argsort(-values if chosen.largest else values, kind="stable")
    if chosen.strategy == "top_p":
        taken = _softmax_mass(values, ranked, chosen) if chosen.softmax else _linear_mass(values, ranked, chosen)
    elif chosen.strategy == "min_p":
        taken = _near_best(values, chosen)
    else:
        taken = ranked[: _count(chosen, len(groups))]
    kept = set(taken.tolist())
    return [group for index, group in enumerate(groups) if index in kept]


def _count(chosen: GroupFilter, groups: int) -> int:
    if chosen.strategy == "top_k_abs":
        return min(int(chosen.value), groups)
    count = int(chosen.value * groups)
    return max(1, count) if chosen.strategy == "top_k" else count


def _linear_mass(values: np.ndarray, ranked: np.ndarray, chosen: GroupFilter) -> np.ndarray:
    ranked = ranked[values[ranked] > 0]
    before = np.concatenate([[0.0], np.cumsum(values[ranked])])
    return ranked[before[:-1] < chosen.value * before[-1] - chosen.eps]


def _softmax_mass(values: np.ndarray, ranked: np.ndarray, chosen: GroupFilter) -> np.ndarray:
    signed = values[ranked] if chosen.largest else -values[ranked]
    mass = np.exp(signed - signed.max())
    before = np.concatenate([[0.0], np.cumsum(mass / mass.sum())[:-1]])
    return ranked[before < chosen.value - 1e-12]  # less than any group's mass: a sum of 1 is reached but for rounding


def _near_best(values: np.ndarray, chosen: GroupFilter) -> np.ndarray:
    best = values.max() if chosen.largest else values.min()
    if best <= 0:
        return np.flatnonzero(values == best)
    return np.flatnonzero(values >= chosen.value * best if chosen.largest else chosen.value * values <= best)
