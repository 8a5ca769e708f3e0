"""Estimators without a critic: an episode is compared with the others of its group, or of its batch.

Shapes: E episodes, at most L tokens each. `mask` is 1 where a token carries loss and 0 elsewhere. `groups` (E,) int64
numbers each episode's group. Each function returns advantages (E, L), 0 where the mask is 0, and veRL's "returns",
which nothing trains on without a critic. A group of one has no baseline: its mean counts as 0, its deviation as 1.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import torch
from verl.trainer.ppo.core_algos import (
    compute_grpo_outcome_advantage,
    compute_reinforce_plus_plus_baseline_outcome_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
    compute_rloo_outcome_advantage,
)

from ragen.trainer.advantages.turns import Turns

__all__ = ["gigpo", "grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "rloo"]

#: Added to a standard deviation before dividing by it, as in veRL's GRPO.
EPS = 1e-6

Estimate = tuple[torch.Tensor, torch.Tensor]


def grpo(rewards: torch.Tensor, mask: torch.Tensor, groups: np.ndarray, *, norm_by_std: bool) -> Estimate:
    """GRPO, DeepSeekMath (arXiv:2402.03300), section 4.1.2: A_i = (R_i - mean) / std of the group, on every token.

    R_i is the episode's return, std the sample standard deviation. `norm_by_std=False` leaves the division out: Dr.
    GRPO (arXiv:2503.20783), which also wants a loss that does not divide by lengths.
    """
    return compute_grpo_outcome_advantage(rewards, mask, groups, epsilon=EPS, norm_adv_by_std_in_grpo=norm_by_std)


def rloo(rewards: torch.Tensor, mask: torch.Tensor, groups: np.ndarray) -> Estimate:
    """RLOO (arXiv:2402.14740), section 3.2: A_i = R_i - mean of the returns of the group's *other* members."""
    return compute_rloo_outcome_advantage(rewards, mask, groups)


def reinforce_plus_plus(rewards: torch.Tensor, mask: torch.Tensor, *, gamma: float) -> Estimate:
    """REINFORCE++ (arXiv:2501.03262): rewards to go, discounted from masked token to masked token, whitened.

    G_t = r_t + γ G_{t+1}; A_t = (G_t - mean) / std over the masked tokens of the batch. No groups.
    """
    return compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config=SimpleNamespace(gamma=gamma))


def reinforce_plus_plus_baseline(rewards: torch.Tensor, mask: torch.Tensor, groups: np.ndarray) -> Estimate:
    """REINFORCE++-baseline (arXiv:2501.03262): R_i - mean of the group, on every token, whitened over the batch."""
    return compute_reinforce_plus_plus_baseline_outcome_advantage(rewards, mask, groups)


def gigpo(
    rewards: torch.Tensor,
    mask: torch.Tensor,
    turn_ids: torch.Tensor,
    state_ids: torch.Tensor,
    groups: np.ndarray,
    *,
    gamma: float,
    step_weight: float,
    norm_by_std: bool,
) -> Estimate:
    """GiGPO (Feng et al. 2025, arXiv:2505.10978), section 4: A = A^E + ω A^S on every token of a turn.

    Episode groups: A^E_i = (R_i - mean) / std over the group. Step groups: all turns of the group, of any episode, that
    answered the same state. With Q_k = r_k + γ Q_{k+1} of the turn rewards, A^S_k = (Q_k - mean) / std over the turns
    of its step group; 0 where the state was met once. `norm_by_std=False` replaces both deviations by 1.

    Args:
        rewards: (E, L) float.
        mask: (E, L), 1 or 0.
        turn_ids: (E, L) int64, never falling within an episode.
        state_ids: (E, L) int64. The same number: the token's turn answered the same state.
        groups: (E,) int64.
        gamma: γ, from turn to turn.
        step_weight: ω.
        norm_by_std: divide by the sample standard deviation.
    """
    episode, _ = grpo(rewards, mask, groups, norm_by_std=norm_by_std)
    turns = Turns(mask, turn_ids)
    to_go = turns.discount(turns.sum(rewards), gamma)
    states = turns.at_start(state_ids)
    members: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for e, k in turns.exists.nonzero().tolist():
        members[int(groups[e]), int(states[e, k])].append((e, k))
    step = torch.zeros_like(to_go)
    for visits in members.values():
        if len(visits) > 1:
            where = tuple(torch.tensor(visits).T)
            centred = to_go[where] - to_go[where].mean()
            step[where] = centred / (to_go[where].std() + EPS) if norm_by_std else centred
    advantages = episode + step_weight * turns.spread(step)
    return advantages, advantages
