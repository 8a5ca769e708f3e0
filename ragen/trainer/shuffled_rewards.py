"""A control experiment: members of a group exchange their rewards, so that no reply has anything to do with its reward.

Whatever a run still gains under `algorithm.shuffle_group_rewards` it did not learn from the rewards. Pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ragen.llm_agent.trajectory import Trajectory


def shuffle_group_rewards(group: Sequence[Trajectory], rng: np.random.Generator) -> list[Trajectory]:
    """The group's episodes in their order, each with the rewards of a member drawn without replacement.

    Args:
        group: the members of one group; failed ones are left as they are and lend nothing.
        rng: draws the permutation.

    Returns:
        New records; only `turn_rewards` differ. The group's returns stay the same numbers.
    """
    usable = [index for index, trajectory in enumerate(group) if trajectory.usable]
    shuffled = list(group)
    for index, source in zip(usable, rng.permutation(usable), strict=True):
        rewards = _over_turns(group[source].turn_rewards, group[index].num_turns)
        shuffled[index] = dataclasses.replace(group[index], turn_rewards=rewards)
    return shuffled


def _over_turns(rewards: np.ndarray, num_turns: int) -> np.ndarray:
    """(num_turns,) float64. Each reward at its own turn; those of later turns than there are at the last one.

    The sum from any turn on is then that of the source: no action of the receiving episode shows in it.
    """
    spread = np.zeros(num_turns)
    np.add.at(spread, np.minimum(np.arange(len(rewards)), num_turns - 1), rewards)
    return spread
