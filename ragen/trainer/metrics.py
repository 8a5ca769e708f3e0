"""What a step or a panel did, as numbers: pure functions from trajectories to metrics.

| metric (`train/` or `val-env/` before it) | meaning |
|---|---|
| `<tag>/success` | share of episodes that solved their task |
| `<tag>/return` | mean undiscounted return |
| `<tag>/pass@<k>` | share of groups of k members with at least one success |
| `<tag>/num_actions`, `<tag>/num_turns` | actions executed and replies given, per episode |
| `<tag>/action_is_effective` | share of executed actions that changed the state |
| `<tag>/action_is_valid` | share of the actions asked for that exist; a turn without any counts as one that does not |
| `<tag>/format_faults` | turns per episode that cost a format penalty |
| `<tag>/non-zero/<key>` | share of episodes in which `<key>` is not 0 |
| `response_length` | sampled tokens per episode |
| `episodes`, `failed/<reason>`, `ended/<reason>` | counts; failed episodes enter no other metric |

Recorded episodes (`offline.path`) enter none of these; `offline_metrics` counts them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from ragen.llm_agent.trajectory import Trajectory


def episode_metrics(trajectories: Sequence[Trajectory], *, group_size: int) -> dict[str, float]:
    """Metrics of a set of episodes, without a prefix; see the table at the top of this file."""
    usable = [t for t in trajectories if t.usable]
    metrics: dict[str, float] = {"episodes": float(len(trajectories))}
    for t in trajectories:
        key = f"{'ended' if t.usable else 'failed'}/{t.end_reason}"
        metrics[key] = metrics.get(key, 0.0) + 1.0
    metrics["failed"] = float(len(trajectories) - len(usable))
    if usable:
        metrics["response_length"] = float(np.mean([t.policy_mask.sum() for t in usable]))
    by_tag: dict[str, list[Trajectory]] = defaultdict(list)
    for t in usable:
        by_tag[t.tag].append(t)
    for tag, episodes in by_tag.items():
        values: dict[str, list[float]] = defaultdict(list)
        for t in episodes:
            values["return"].append(t.episode_return)
            values["num_turns"].append(float(t.num_turns))
            for key, value in t.metrics.items():
                values[key].append(value)
        for key, column in values.items():
            metrics[f"{tag}/{key}"] = float(np.mean(column))
            metrics[f"{tag}/non-zero/{key}"] = float(np.mean([value != 0 for value in column]))
        if group_size > 1:
            solved: dict[int, bool] = defaultdict(bool)
            for t in episodes:
                solved[t.group] |= t.metrics["success"] > 0
            metrics[f"{tag}/pass@{group_size}"] = float(np.mean(list(solved.values())))
    return metrics


def successes(trajectories: Sequence[Trajectory]) -> dict[tuple[str, int, int], float]:
    """(tag, seed, member) → 1.0 where the episode solved its task, 0.0 where not or where it failed."""
    return {(t.tag, t.seed, t.member): t.metrics.get("success", 0.0) if t.usable else 0.0 for t in trajectories}


def offline_metrics(groups: Sequence[Sequence[Trajectory]], rounds: Sequence[int], step: int) -> dict[str, float]:
    """What of a step came from a recording; empty where nothing did.

    | metric | meaning |
    |---|---|
    | `offline/groups`, `offline/episodes` | how many |
    | `offline/pass` | how often the recording has been gone through, this pass included |
    | `offline/age/mean`, `offline/age/max` | steps from the weights that sampled an episode to the present ones |

    The age counts in steps of the recording's own run: below 0, the recording is of a policy that was trained longer.
    """
    if not groups:
        return {}
    ages = [step - 1 - t.model_version[1] for group in groups for t in group]
    return {
        "offline/groups": float(len(groups)),
        "offline/episodes": float(len(ages)),
        "offline/pass": float(max(rounds) + 1),
        "offline/age/mean": float(np.mean(ages)),
        "offline/age/max": float(max(ages)),
    }


def log_prob_difference(
    actor: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor, *, prefix: str = "training/rollout"
) -> dict[str, float]:
    """How far apart the actor and the rollout engine are on the sampled tokens, in log-probability.

    In float32 they agree to about 1e-6 when the engine holds the actor's weights; bfloat16 kernels differ by about
    1e-2. More than that says stale weights, another temperature, or tokens that were not sampled.

    Args:
        actor, rollout: (batch, response) float, natural log.
        mask: (batch, response), non-zero on sampled tokens.
    """
    difference = (actor.float() - rollout.float()).abs()[mask.bool()]
    if not difference.numel():
        return {}
    return {
        f"{prefix}_log_prob_diff_mean": difference.mean().item(),
        f"{prefix}_log_prob_diff_max": difference.max().item(),
    }


def failure_summary(trajectories: Sequence[Trajectory]) -> str:
    """One line that counts failed episodes by tag and reason; empty when none failed."""
    counts = Counter((t.tag, t.end_reason) for t in trajectories if not t.usable)
    return ", ".join(f"{count} {tag} {reason}" for (tag, reason), count in sorted(counts.items()))
