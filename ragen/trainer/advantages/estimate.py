"""One call from a batch's samples to their advantages: reward shaping, the estimator, what is done to its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ragen.trainer.advantages import groups, shaping, values
from ragen.trainer.advantages.episodes import Episodes
from ragen.trainer.advantages.table import estimator_name

__all__ = ["AdvantageSettings", "Samples", "estimate", "shape_rewards"]


@dataclass(frozen=True)
class AdvantageSettings:
    """Keys of `algorithm`, `agent_proxy.reward_normalization` and a few others, by their names there."""

    adv_estimator: str
    gamma: float = 1.0
    lam: float = 1.0
    high_level_gamma: float = 0.95
    """From turn to turn: bi-level and turn-level GAE, GiGPO."""
    bi_level_gae: bool = False
    norm_adv_by_std_in_grpo: bool = True
    gigpo_step_weight: float = 1.0
    grouping: str = "state"
    method: str = "identity"
    overlong_share: float = 0.0
    """Share of a reply's limit; 0: no penalty."""
    overlong_penalty: float = 1.0
    grpo_advantage_length_weight: bool = False
    filter_loss_scaling: str = "none"
    soft_advantage_reweight: bool = False
    zero_task_advantage: bool = False

    @property
    def name(self) -> str:
        """The estimator, as `table.supported` knows it."""
        return estimator_name(self.adv_estimator, self.bi_level_gae)

    @classmethod
    def from_nodes(cls, *nodes: Mapping[str, Any]) -> AdvantageSettings:
        """Each field from the first of the config nodes that has a key of its name; the rest keep their defaults."""
        names = cls.__dataclass_fields__
        return cls(**{n: next(node[n] for node in nodes if n in node) for n in names if any(n in x for x in nodes)})


@dataclass(frozen=True)
class Samples:
    """What is known of a batch's N samples, R response tokens at most; no sample's tokens lie in its padding."""

    episodes: Episodes
    mask: torch.Tensor
    """(N, R) 1: carries loss."""
    turn_ids: torch.Tensor
    """(N, R) int64."""
    tags: Sequence[str]
    """(E,) Name of each episode's environment."""
    reply_limits: Sequence[int]
    """(E,) Most tokens of a reply."""
    values: torch.Tensor | None = None
    """(N, R) The critic's, where there is one."""
    state_ids: torch.Tensor | None = None
    """(N, R) int64. Number of the state that the token's turn answered; GiGPO alone reads it."""


def shape_rewards(settings: AdvantageSettings, samples: Samples, rewards: torch.Tensor) -> torch.Tensor:
    """(N, R) → (N, R): the environment's rewards with the overlong penalty, then normalised."""
    if not settings.overlong_share and settings.method == "identity":
        return rewards
    episodes = samples.episodes
    mask, shaped = episodes.join(samples.mask), episodes.join(rewards)
    if settings.overlong_share:
        turn_ids, limits = episodes.join(samples.turn_ids), torch.tensor(samples.reply_limits)
        penalty = shaping.overlong_penalty(
            mask, turn_ids, limits, share=settings.overlong_share, factor=settings.overlong_penalty
        )
        shaped = shaped + penalty.to(shaped.dtype)
    labels = {"state": episodes.groups, "inductive": np.array(samples.tags), "batch": np.zeros(len(mask), np.int64)}
    return episodes.split(shaping.normalise_rewards(shaped, mask, labels[settings.grouping], settings.method))


def estimate(
    settings: AdvantageSettings,
    samples: Samples,
    rewards: torch.Tensor,
    *,
    raw_returns: torch.Tensor,
    kept_share: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns of every sample, (N, R) each; 0 on tokens without mask.

    Args:
        settings: which estimator and what around it.
        samples: the batch.
        rewards: (N, R) float, shaped.
        raw_returns: (E,) returns as the environment paid them.
        kept_share: the share of the step's groups that the filter kept.
    """
    episodes, batch = samples.episodes, _Batch.of(samples, rewards)
    advantages, returns = _ESTIMATORS[settings.name](settings, batch)
    if settings.zero_task_advantage:
        advantages = torch.zeros_like(advantages)
    scale = shaping.filter_scale(kept_share, settings.filter_loss_scaling)
    weights = torch.full((len(batch.mask),), scale, dtype=torch.float64)
    if settings.grpo_advantage_length_weight:
        weights *= shaping.inverse_length_weights(batch.mask)
    if settings.soft_advantage_reweight:
        weights *= shaping.group_spread_weights(raw_returns, episodes.groups)
    advantages = advantages * weights[:, None].to(advantages.dtype)
    return episodes.split(advantages), episodes.split(returns)


@dataclass(frozen=True)
class _Batch:
    """What estimators get: episodes (E, L), and each episode's group (E,)."""

    rewards: torch.Tensor
    mask: torch.Tensor
    turn_ids: torch.Tensor
    groups: np.ndarray
    values: torch.Tensor | None
    state_ids: torch.Tensor | None

    @classmethod
    def of(cls, samples: Samples, rewards: torch.Tensor) -> _Batch:
        join = samples.episodes.join
        optional = (None if column is None else join(column) for column in (samples.values, samples.state_ids))
        return cls(join(rewards), join(samples.mask), join(samples.turn_ids), samples.episodes.groups, *optional)

    @property
    def critic(self) -> torch.Tensor:
        return _there(self.values, "the critic's values")

    @property
    def states(self) -> torch.Tensor:
        return _there(self.state_ids, "state ids")


def _there(column: torch.Tensor | None, what: str) -> torch.Tensor:
    if column is None:
        raise ValueError(f"algorithm.adv_estimator needs {what}, and the batch has none")
    return column


#: Name, as `AdvantageSettings.name` says it → the estimator.
_ESTIMATORS: dict[str, Callable[[AdvantageSettings, _Batch], tuple[torch.Tensor, torch.Tensor]]] = {
    "gae": lambda s, b: values.gae(b.rewards, b.critic, b.mask, gamma=s.gamma, lam=s.lam),
    "bi_level_gae": lambda s, b: values.bi_level_gae(
        b.rewards, b.critic, b.mask, b.turn_ids, gamma=s.gamma, lam=s.lam, high_level_gamma=s.high_level_gamma
    ),
    "turn_gae": lambda s, b: values.turn_gae(
        b.rewards, b.critic, b.mask, b.turn_ids, gamma=s.high_level_gamma, lam=s.lam
    ),
    "grpo": lambda s, b: groups.grpo(b.rewards, b.mask, b.groups, norm_by_std=s.norm_adv_by_std_in_grpo),
    "rloo": lambda s, b: groups.rloo(b.rewards, b.mask, b.groups),
    "reinforce_plus_plus": lambda s, b: groups.reinforce_plus_plus(b.rewards, b.mask, gamma=s.gamma),
    "reinforce_plus_plus_baseline": lambda s, b: groups.reinforce_plus_plus_baseline(b.rewards, b.mask, b.groups),
    "gigpo": lambda s, b: groups.gigpo(
        b.rewards,
        b.mask,
        b.turn_ids,
        b.states,
        b.groups,
        gamma=s.high_level_gamma,
        step_weight=s.gigpo_step_weight,
        norm_by_std=s.norm_adv_by_std_in_grpo,
    ),
}
