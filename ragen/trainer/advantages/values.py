"""Estimators with a critic: generalized advantage estimation over tokens, over turns, and over both.

Shapes: E episodes, at most L tokens each. `mask` is 1 where a token carries loss (it was sampled) and 0 elsewhere;
nothing is read from a value or estimated where it is 0. An episode's end has no successor: nothing is bootstrapped.
Advantages are whitened over the masked tokens of the batch. Returns, the critic's target, are not.
"""

from __future__ import annotations

import torch
from verl.trainer.ppo.core_algos import compute_gae_advantage_return
from verl.utils.torch_functional import masked_whiten

from ragen.trainer.advantages.turns import Turns

__all__ = ["bi_level_gae", "gae", "turn_gae"]


def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, *, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token-level GAE, Schulman et al. (arXiv:1506.02438), equation 16, over an episode's masked tokens.

    δ_t = r_t + γ V_{t+1} - V_t; A_t = δ_t + γλ A_{t+1}, where t+1 is the next masked token; at a turn's end that is the
    first one of the next turn. A reward on a token without mask is lost.

    Args:
        rewards, values: (E, L) float.
        mask: (E, L), 1 or 0.
        gamma: γ, from token to token.
        lam: λ.

    Returns:
        Whitened advantages and returns A + V, (E, L) each, 0 where the mask is 0.
    """
    advantages, returns = compute_gae_advantage_return(rewards, values, mask, gamma, lam)
    return advantages * mask, returns * mask


def turn_gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    turn_ids: torch.Tensor,
    *,
    gamma: float,
    lam: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn-level GAE: equation 16 of arXiv:1506.02438 with a whole turn as one action.

    V_k is the value at turn k's first masked token, before its reply; r_k the sum of the turn's rewards.
    δ_k = r_k + γ V_{k+1} - V_k; A_k = δ_k + γλ A_{k+1}. Every masked token of turn k gets A_k, and A_k + V_k as return.

    Args:
        rewards, values: (E, L) float.
        mask: (E, L), 1 or 0.
        turn_ids: (E, L) int64, never falling within an episode.
        gamma: γ, from turn to turn.
        lam: λ, from turn to turn.

    Returns:
        As `gae`.
    """
    turns = Turns(mask, turn_ids)
    start_values = turns.at_start(values)
    advantages = turns.discount(turns.sum(rewards) + gamma * turns.next(start_values) - start_values, gamma * lam)
    spread = turns.spread(advantages)
    return masked_whiten(spread, mask) * mask, turns.spread(advantages + start_values)


def bi_level_gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    turn_ids: torch.Tensor,
    *,
    gamma: float,
    lam: float,
    high_level_gamma: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bi-level GAE: over turns first, then over the tokens inside each (as VAGEN, arXiv:2510.16907, credits turns).

    Outer pass, over turn ends e_k (turn k's last masked token), with γ_h: δ_k = r_k + γ_h V(e_{k+1}) - V(e_k);
    A_k = δ_k + γ_h λ A_{k+1}; r_k is the sum of the turn's rewards. Inner pass: the turn value A_k + V(e_k) stands in
    place of the turn's rewards, at its end; then token GAE inside the turn, with γ, which restarts at the turn's end.

    Args:
        rewards, values: (E, L) float.
        mask: (E, L), 1 or 0.
        turn_ids: (E, L) int64, never falling within an episode.
        gamma: γ, from token to token.
        lam: λ of both passes.
        high_level_gamma: γ_h, from turn to turn.

    Returns:
        As `gae`.
    """
    turns = Turns(mask, turn_ids)
    end_values = turns.at_end(values)
    outer = turns.discount(
        turns.sum(rewards) + high_level_gamma * turns.next(end_values) - end_values, high_level_gamma * lam
    )
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)
    following_advantage, following_value = values.new_zeros(len(values)), values.new_zeros(len(values))
    turn_values = turns.place_at_end(outer + end_values)
    is_end = turns.is_end
    for t in reversed(range(values.shape[1])):
        inside = ~is_end[:, t]
        delta = turn_values[:, t] + gamma * following_value * inside - values[:, t]
        here = delta + gamma * lam * following_advantage * inside
        sampled = mask[:, t].bool()
        following_advantage = torch.where(sampled, here, following_advantage)
        following_value = torch.where(sampled, values[:, t], following_value)
        advantages[:, t] = here * sampled
        returns[:, t] = (here + values[:, t]) * sampled
    return masked_whiten(advantages, mask) * mask, returns
