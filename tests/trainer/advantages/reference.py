"""Every estimator once more, as plain loops over lists, written from the equations and sharing no code with them.

Each takes episodes and gives, for each, advantages and returns as lists over its sampled tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.trainer.advantages.episodes_for_tests import Episode

Lists = list[list[float]]


def tokens_of(episode: Episode, turn_scores: bool) -> tuple[list[float], list[float]]:
    """Rewards and values of the sampled tokens."""
    rewards: list[float] = []
    values: list[float] = []
    for turn in episode.turns:
        values += turn.values
        rewards += [0.0] * (len(turn.values) - 1) + [turn.reward if turn_scores else 0.0]
    if not turn_scores:
        rewards[-1] = episode.total
    return rewards, values


def turn_rewards(episode: Episode, turn_scores: bool) -> list[float]:
    if turn_scores:
        return [turn.reward for turn in episode.turns]
    return [0.0] * (len(episode.turns) - 1) + [episode.total]


def whiten(advantages: Lists) -> Lists:
    every = [a for own in advantages for a in own]
    mean = sum(every) / len(every)
    variance = sum((a - mean) ** 2 for a in every) / (len(every) - 1)
    return [[(a - mean) / math.sqrt(variance + 1e-8) for a in own] for own in advantages]


def backwards(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """Generalized advantages of one chain that ends with its last element."""
    advantages = [0.0] * len(rewards)
    for t in range(len(rewards) - 1, -1, -1):
        ends = t == len(rewards) - 1
        after_value = 0.0 if ends else values[t + 1]
        after_advantage = 0.0 if ends else advantages[t + 1]
        advantages[t] = rewards[t] + gamma * after_value - values[t] + gamma * lam * after_advantage
    return advantages


def gae(episodes: list[Episode], turn_scores: bool, gamma: float, lam: float) -> tuple[Lists, Lists]:
    advantages, returns = [], []
    for episode in episodes:
        rewards, values = tokens_of(episode, turn_scores)
        own = backwards(rewards, values, gamma, lam)
        advantages.append(own)
        returns.append([a + v for a, v in zip(own, values, strict=True)])
    return whiten(advantages), returns


def turn_gae(episodes: list[Episode], turn_scores: bool, gamma: float, lam: float) -> tuple[Lists, Lists]:
    advantages, returns = [], []
    for episode in episodes:
        values = [turn.values[0] for turn in episode.turns]
        own = backwards(turn_rewards(episode, turn_scores), values, gamma, lam)
        advantages.append([a for a, turn in zip(own, episode.turns, strict=True) for _ in turn.values])
        returns.append([a + v for a, v, turn in zip(own, values, episode.turns, strict=True) for _ in turn.values])
    return whiten(advantages), returns


def bi_level_gae(
    episodes: list[Episode], turn_scores: bool, gamma: float, lam: float, high: float
) -> tuple[Lists, Lists]:
    advantages, returns = [], []
    for episode in episodes:
        ends = [turn.values[-1] for turn in episode.turns]
        outer = backwards(turn_rewards(episode, turn_scores), ends, high, lam)
        own: list[float] = []
        targets: list[float] = []
        for k, turn in enumerate(episode.turns):
            inside = [0.0] * (len(turn.values) - 1) + [outer[k] + ends[k]]
            inner = backwards(inside, turn.values, gamma, lam)
            own += inner
            targets += [a + v for a, v in zip(inner, turn.values, strict=True)]
        advantages.append(own)
        returns.append(targets)
    return whiten(advantages), returns


def _on_every_token(episodes: list[Episode], numbers: list[float]) -> Lists:
    return [[x] * sum(len(turn.values) for turn in e.turns) for e, x in zip(episodes, numbers, strict=True)]


def _deviation(numbers: list[float]) -> float:
    mean = sum(numbers) / len(numbers)
    return math.sqrt(sum((x - mean) ** 2 for x in numbers) / (len(numbers) - 1))


def _grpo_numbers(episodes: list[Episode], norm: bool) -> list[float]:
    numbers = []
    for episode in episodes:
        group = [other.total for other in episodes if other.group == episode.group]
        if len(group) == 1:  # nothing to compare with: mean 0, deviation 1
            numbers.append(episode.total / (1 + 1e-6) if norm else episode.total)
            continue
        centred = episode.total - sum(group) / len(group)
        numbers.append(centred / (_deviation(group) + 1e-6) if norm else centred)
    return numbers


def grpo(episodes: list[Episode], norm: bool) -> Lists:
    return _on_every_token(episodes, _grpo_numbers(episodes, norm))


def rloo(episodes: list[Episode]) -> Lists:
    numbers = []
    for episode in episodes:
        others = [e.total for e in episodes if e.group == episode.group and e.member != episode.member]
        numbers.append(episode.total - (sum(others) / len(others) if others else 0.0))
    return _on_every_token(episodes, numbers)


def reinforce_plus_plus(episodes: list[Episode], turn_scores: bool, gamma: float) -> Lists:
    to_go = []
    for episode in episodes:
        rewards, _ = tokens_of(episode, turn_scores)
        to_go.append([sum(gamma ** (u - t) * rewards[u] for u in range(t, len(rewards))) for t in range(len(rewards))])
    return whiten(to_go)


def reinforce_plus_plus_baseline(episodes: list[Episode]) -> Lists:
    numbers = []
    for episode in episodes:
        group = [other.total for other in episodes if other.group == episode.group]
        numbers.append(episode.total - (sum(group) / len(group) if len(group) > 1 else 0.0))
    return whiten(_on_every_token(episodes, numbers))


def gigpo(episodes: list[Episode], turn_scores: bool, gamma: float, weight: float, norm: bool) -> Lists:
    to_go = []
    for episode in episodes:
        rewards = turn_rewards(episode, turn_scores)
        to_go.append([sum(gamma ** (j - k) * rewards[j] for j in range(k, len(rewards))) for k in range(len(rewards))])
    result = []
    for i, (episode, number) in enumerate(zip(episodes, _grpo_numbers(episodes, norm), strict=True)):
        own: list[float] = []
        for k, turn in enumerate(episode.turns):
            visits = [
                to_go[j][m]
                for j, other in enumerate(episodes)
                if other.group == episode.group
                for m, there in enumerate(other.turns)
                if there.state == turn.state
            ]
            step = 0.0
            if len(visits) > 1:
                step = to_go[i][k] - sum(visits) / len(visits)
                step = step / (_deviation(visits) + 1e-6) if norm else step
            own += [number + weight * step] * len(turn.values)
        result.append(own)
    return result


def normalised(episodes: list[Episode], label: Callable[[Episode], object], method: str) -> list[float]:
    """Normalised returns."""
    numbers = []
    for episode in episodes:
        same = [other.total for other in episodes if label(other) == label(episode)]
        mean = sum(same) / len(same)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in same) / len(same))
        z = episode.total - mean
        if method != "mean":
            z /= deviation + 1e-6
        numbers.append(min(3.0, max(-1.0, z)) if method == "asym_clip" else z)
    return numbers
