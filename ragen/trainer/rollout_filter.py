"""StarPO-S's rollout filter: which groups of a step are trained on. Pure functions over raw returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def select_groups(returns: Mapping[str, Sequence[float]], *, ratio: float, order: str = "std") -> list[str]:
    """The groups of widest (`std`) or narrowest (`std_rev`) spread of raw returns.

    RAGEN (arXiv:2504.20073), section 3.3: keep the share `ratio` of the groups whose in-group standard deviation of
    returns is highest. Raw returns are ranked, before any normalisation.

    Args:
        returns: group → the returns of its usable members (at least one each).
        ratio: share of the groups kept, in (0, 1]; `int(ratio * groups)` are kept, 1 keeps all.
        order: `std` or `std_rev`.

    Returns:
        The kept groups, in the order of `returns`. Ties go to the earlier group.

    Raises:
        ValueError: a ratio outside (0, 1] or an unknown order.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"rollout_filter_ratio must lie in (0, 1], is {ratio}")
    if order not in ("std", "std_rev"):
        raise ValueError(f"rollout_filter_type must be std or std_rev, is {order!r}")
    groups = list(returns)
    spread = np.array([np.std(returns[group]) for group in groups], dtype=np.float64)
    ranked = np.argsort(-spread if order == "std" else spread, kind="stable")
    kept = set(ranked[: int(ratio * len(groups))].tolist())
    return [group for index, group in enumerate(groups) if index in kept]
