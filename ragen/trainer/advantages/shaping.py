"""What is done to rewards before an estimator sees them, and to advantages after it. Pure functions.

Shapes as in `values.py`: E episodes of at most L tokens; `mask` is 1 where a token carries loss.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ragen.trainer.advantages.turns import Turns

__all__ = ["filter_scale", "group_spread_weights", "inverse_length_weights", "normalise_rewards", "overlong_penalty"]

#: Added to a standard deviation before dividing by it.
EPS = 1e-6
#: Bounds of `asym_clip`.
ASYM_CLIP = (-1.0, 3.0)


def normalise_rewards(rewards: torch.Tensor, mask: torch.Tensor, labels: np.ndarray, method: str) -> torch.Tensor:
    """`agent_proxy.reward_normalization`: returns are normalised among the episodes of one label.

    With R the return of an episode, m and s the mean and population standard deviation of its label's returns:
    `identity` leaves R, `mean` makes it R - m, `mean_std` (R - m) / (s + 1e-6), `asym_clip` the latter limited to
    [-1, 3]. Rewards are divided like their sum; what then has to be added to reach it, at the last masked token.

    Args:
        rewards: (E, L) float.
        mask: (E, L), 1 or 0; at least one 1 in each episode.
        labels: (E,) what is compared: the group (`state`), the environment's tag (`inductive`), one for all (`batch`).
        method: identity, mean, mean_std or asym_clip.

    Returns:
        (E, L): rewards whose sums are the normalised returns.

    Raises:
        ValueError: an unknown method.
    """
    if method == "identity":
        return rewards
    if method not in ("mean", "mean_std", "asym_clip"):
        raise ValueError(f"reward_normalization.method: {method!r} is none of identity, mean, mean_std, asym_clip")
    returns = rewards.sum(dim=1)
    wanted, scaled = torch.empty_like(returns), torch.empty_like(rewards)
    for label in np.unique(labels):
        own = torch.from_numpy(labels == label)
        scale = 1.0 if method == "mean" else returns[own].std(unbiased=False) + EPS
        wanted[own] = (returns[own] - returns[own].mean()) / scale
        scaled[own] = rewards[own] / scale
    if method == "asym_clip":
        wanted = wanted.clamp(*ASYM_CLIP)
    scaled[torch.arange(len(rewards)), _last(mask)] += wanted - scaled.sum(dim=1)
    return scaled


def overlong_penalty(
    mask: torch.Tensor, turn_ids: torch.Tensor, limits: torch.Tensor, *, share: float, factor: float
) -> torch.Tensor:
    """DAPO's soft overlong punishment (arXiv:2503.14476, equation 13) of each reply, at its last token.

    Of a limit, the last `share` is the buffer. A reply of l masked tokens costs nothing up to limit - buffer, and from
    there on factor · (l - (limit - buffer)) / buffer, at most `factor`.

    Args:
        mask: (E, L), 1 or 0.
        turn_ids: (E, L) int64.
        limits: (E,) most tokens of a reply of the episode.
        share: in (0, 1].
        factor: the greatest penalty.

    Returns:
        (E, L) float, zero or negative: to be added to the rewards.
    """
    turns = Turns(mask, turn_ids)
    lengths = turns.sum(mask.double())
    buffer = share * limits[:, None]
    excess = (lengths - (limits[:, None] - buffer)) / buffer
    return turns.place_at_end(-factor * excess.clamp(0.0, 1.0) * turns.exists)


def inverse_length_weights(mask: torch.Tensor) -> torch.Tensor:
    """`grpo_advantage_length_weight`: (E,) the batch's mean number of masked tokens over the episode's own.

    Under `token-mean` an episode weighs as much as it has tokens; with these weights all weigh the same.
    """
    lengths = mask.sum(dim=1).double()
    return lengths.mean() / lengths.clamp(min=1)


def group_spread_weights(returns: torch.Tensor, groups: np.ndarray) -> torch.Tensor:
    """`soft_advantage_reweight`: (E,) the standard deviation of the group's returns over the greatest of the batch.

    All 0 where no group has any spread.

    Args:
        returns: (E,) raw returns.
        groups: (E,) int64.
    """
    spread = torch.zeros(len(returns), dtype=torch.float64)
    for group in np.unique(groups):
        own = torch.from_numpy(groups == group)
        spread[own] = returns[own].double().std(unbiased=False)
    return spread / spread.max() if spread.max() > 0 else spread


def filter_scale(kept_share: float, mode: str) -> float:
    """`filter_loss_scaling`: what advantages are multiplied by when the filter kept this share of the groups.

    none: 1; linear: the share; sqrt: its square root, so that a thin batch moves the weights less.

    Raises:
        ValueError: an unknown mode.
    """
    scales = {"none": 1.0, "linear": kept_share, "sqrt": math.sqrt(kept_share)}
    if mode not in scales:
        raise ValueError(f"filter_loss_scaling: {mode!r} is none of {', '.join(scales)}")
    return scales[mode]


def _last(mask: torch.Tensor) -> torch.Tensor:
    """(E,) int64. Position of each episode's last masked token."""
    return torch.where(mask.bool(), torch.arange(mask.shape[1]), -1).max(dim=1).values
