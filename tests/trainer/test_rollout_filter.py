"""The StarPO-S filter on hand-made returns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragen.trainer.rollout_filter import select_groups

#: standard deviations 0, 1, 5, 0.5
RETURNS = {"flat": [3.0, 3.0], "some": [0.0, 2.0], "wide": [0.0, 10.0], "thin": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("ratio", "order", "kept"),
    [
        (0.25, "std", ["wide"]),
        (0.5, "std", ["some", "wide"]),
        (0.75, "std", ["some", "wide", "thin"]),
        (1, "std", ["flat", "some", "wide", "thin"]),
        (0.25, "std_rev", ["flat"]),
        (0.5, "std_rev", ["flat", "thin"]),
        (0.24, "std", []),
    ],
)
def test_keeps_the_given_share_by_spread_in_the_order_given(ratio, order, kept):
    assert select_groups(RETURNS, ratio=ratio, order=order) == kept


def test_ties_go_to_the_earlier_group():
    assert select_groups({"a": [1.0], "b": [2.0], "c": [3.0]}, ratio=0.34) == ["a"]


def test_no_groups_no_choice():
    assert select_groups({}, ratio=0.25) == []


@pytest.mark.parametrize("ratio", [0, -0.1, 1.01])
def test_a_ratio_outside_its_range_is_refused(ratio):
    with pytest.raises(ValueError, match="rollout_filter_ratio"):
        select_groups(RETURNS, ratio=ratio)


def test_an_unknown_order_is_refused():
    with pytest.raises(ValueError, match="rollout_filter_type must be std or std_rev, is 'max_mean'"):
        select_groups(RETURNS, ratio=0.5, order="max_mean")


@given(
    st.dictionaries(st.integers(), st.lists(st.floats(-10, 10), min_size=1, max_size=5), min_size=1),
    st.floats(0.01, 1),
)
def test_no_dropped_group_is_wider_than_a_kept_one(returns, ratio):
    kept = select_groups(returns, ratio=ratio)
    assert len(kept) == int(ratio * len(returns))
    dropped = [np.std(values) for group, values in returns.items() if group not in kept]
    if kept and dropped:
        assert min(np.std(returns[group]) for group in kept) >= max(dropped)
