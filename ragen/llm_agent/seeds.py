"""Every random stream of a run, as a pure function of (run seed, group seed, member, turn).

Results do not depend on batch order, worker count, or which episode finished first. No global RNG anywhere.
"""

from __future__ import annotations

import numpy as np

# distinct branches of the tree, so that no two streams coincide
# distinct branches of the tree, so that no two streams coincide
_LUCK, _SAMPLER, _SHUFFLE, _RESUMED, _ADJUST, _OFFLINE = range(1, 7)


def _draw(*path: int) -> int:
    """A 31-bit integer from the tree's node `path` (non-negative integers)."""
    return int(np.random.SeedSequence(path).generate_state(1, np.uint32)[0] >> 1)


def luck_seed(run_seed: int, group_seed: int, member: int) -> int:
    """Seed of one member's own luck (slips, payouts) in an environment that starts from `group_seed`."""
    return _draw(_LUCK, run_seed, group_seed, member)


def sampler_seed(run_seed: int, group_seed: int, member: int, turn: int) -> int:
    """Seed of the engine's sampler for one reply."""
    return _draw(_SAMPLER, run_seed, group_seed, member, turn)


def resumed_seed(seed: int, done: int) -> int:
    """Seed of the rest of a reply that was interrupted after `done` tokens; `seed` is the reply's own."""
    return _draw(_RESUMED, seed, done)


def shuffle_seed(run_seed: int, group_seed: int) -> int:
    """Seed of the exchange of rewards within one group (`algorithm.shuffle_group_rewards`)."""
    return _draw(_SHUFFLE, run_seed, group_seed)


def adjust_seed(run_seed: int, step: int) -> int:
    """Seed of the draw of samples that are repeated or left out in a step (`agent_proxy.batch_adjust_mode`)."""
    return _draw(_ADJUST, run_seed, step)


def offline_order(run_seed: int, round_: int) -> int:
    """Seed of the order in which pass `round_` goes through recorded groups (`offline.path`)."""
    return _draw(_OFFLINE, run_seed, round_)


def group_seed(base_seed: int, row: int) -> int:
    """Environment seed of group `row` of the run (or of the panel): `base_seed + row`."""
    return base_seed + row
