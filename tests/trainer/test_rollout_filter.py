"""The rollout filter on hand-made groups, in both vocabularies."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.trainer.rollout_filter import SECOND, GroupFilter, Member, group_score, select_groups

#: scores of five groups, in this order
SCORES = {"flat": 0.0, "some": 0.1, "wide": 0.5, "thin": 0.05, "mid": 0.35}
NAMES = list(SCORES)


def keys(**changed):
    """The keys as `base` has them, apart from `changed`."""
    return {"ratio": 0.25, "type": "std", **SECOND, **changed}


def kept(**changed):
    return select_groups(SCORES, GroupFilter.from_keys(keys(**changed)))


# --- scores ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        ("reward_variance", math.sqrt(2 / 3)),  # returns 1, 2, 3: population standard deviation
        ("reward", 2.0),
        ("reward_sum", 6.0),
        ("entropy", 0.5),
        ("entropy_variance", math.sqrt(0.06)),  # 0.2, 0.8, 0.5
        ("length", 20.0),
        ("max_mean", 1.0),
    ],
)
def test_each_metric_by_hand(metric, score):
    group = [Member(1.0, 0.2, 10), Member(2.0, 0.8, 40), Member(3.0, 0.5, 10)]
    assert group_score(group, metric) == pytest.approx(score)


# --- ratio and type ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "order", "expected"),
    [
        (0.2, "std", ["wide"]),
        (0.4, "std", ["wide", "mid"]),
        (0.6, "std", ["some", "wide", "mid"]),
        (0.79, "std", ["some", "wide", "mid"]),  # int(3.95)
        (1, "std", NAMES),
        (0.2, "std_rev", ["flat"]),
        (0.4, "std_rev", ["flat", "thin"]),
        (0.19, "std", []),
    ],
)
def test_keeps_the_given_share_by_spread_in_the_order_given(ratio, order, expected):
    assert kept(ratio=ratio, type=order) == expected


def test_max_mean_ranks_by_how_far_the_best_member_lies_above_the_mean():
    chosen = GroupFilter.from_keys(keys(ratio=0.5, type="max_mean"))
    lucky, split = [Member(0.0)] * 7 + [Member(8.0)], [Member(0.0)] * 4 + [Member(8.0)] * 4
    scores = {name: group_score(group, chosen.metric) for name, group in (("split", split), ("lucky", lucky))}
    assert scores == {"split": 4.0, "lucky": 7.0}
    assert select_groups(scores, chosen) == ["lucky"]
    assert group_score(split, "reward_variance") > group_score(lucky, "reward_variance")  # std would choose otherwise


# --- strategy and value ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        # total 1.0: taken while the sum is below value - 0.01
        ({"value": 0.5}, ["wide"]),
        ({"value": 0.511}, ["wide", "mid"]),
        ({"value": 0.9}, ["some", "wide", "mid"]),
        ({"type": "largest"}, ["some", "wide", "thin", "mid"]),  # 1.0 keeps every group with mass
        ({"value": 0.9, "selection_eps": 0.06}, ["wide", "mid"]),
        ({"value": 0.1, "type": "smallest"}, ["some", "thin"]),
        ({"value": 0.9, "include_zero": False}, ["some", "wide", "mid"]),
        # top_k: of 5 groups, or of the 4 that are not 0
        ({"strategy": "top_k", "value": 0.5}, ["wide", "mid"]),
        ({"strategy": "top_k", "value": 0.5, "include_zero": False}, ["wide", "mid"]),
        ({"strategy": "top_k", "value": 0.1}, ["wide"]),
        ({"strategy": "top_k", "value": 1.0}, NAMES),
        ({"strategy": "top_k", "value": 1.0, "include_zero": False}, ["some", "wide", "thin", "mid"]),
        ({"strategy": "top_k", "value": 0.4, "type": "smallest"}, ["flat", "thin"]),
        ({"strategy": "top_k_abs", "value": 3}, ["some", "wide", "mid"]),
        ({"strategy": "top_k_abs", "value": 9}, NAMES),
        ({"strategy": "top_k_abs", "value": 1, "type": "smallest", "include_zero": False}, ["thin"]),
        # min_p
        ({"strategy": "min_p", "value": 0.7}, ["wide", "mid"]),
        ({"strategy": "min_p", "value": 0.2}, ["some", "wide", "mid"]),
        ({"strategy": "min_p", "value": 1.0}, ["wide"]),
        ({"strategy": "min_p", "value": 0.5, "type": "smallest"}, ["flat"]),
        ({"strategy": "min_p", "value": 0.5, "type": "smallest", "include_zero": False}, ["some", "thin"]),
    ],
)
def test_each_strategy_by_hand(changed, expected):
    assert kept(**changed) == expected


def test_softmax_mass_by_hand():
    mass = {name: math.exp(score) / sum(map(math.exp, SCORES.values())) for name, score in SCORES.items()}
    two = mass["wide"] + mass["mid"]
    softmax = {"top_p_prob_mode": "softmax"}
    assert kept(value=two - 1e-6, **softmax) == ["wide", "mid"]
    assert kept(value=two + 1e-6, **softmax) == ["some", "wide", "mid"]
    assert kept(value=1e-6, **softmax) == ["wide"]
    assert kept(value=1e-6, type="smallest", **softmax) == ["flat"]
    assert kept(value=1.0, **softmax) == NAMES


def test_softmax_is_nearly_blind_to_spreads_below_one_half_and_linear_is_not():
    scores = dict(enumerate([0.5, 0.4, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0]))
    linear, softmax = (GroupFilter.from_keys(keys(value=0.9, top_p_prob_mode=mode)) for mode in ("linear", "softmax"))
    assert len(select_groups(scores, linear)) == 3
    assert len(select_groups(scores, softmax)) in (7, 8)


@pytest.mark.parametrize("changed", [{"value": 0.9}, {"include_zero": False}])
def test_groups_without_spread_may_leave_none(changed):
    chosen = GroupFilter.from_keys(keys(**changed))
    assert select_groups({"a": 0.0, "b": 0.0}, chosen) == []
    assert select_groups({}, chosen) == []


def test_scores_that_are_not_positive_have_no_mass_and_no_scale():
    scores = {"a": -1.0, "b": -2.0, "c": 3.0}
    assert select_groups(scores, GroupFilter.from_keys(keys(value=0.9, metric="reward"))) == ["c"]
    negative = {"a": -1.0, "b": -2.0}
    assert select_groups(negative, GroupFilter.from_keys(keys(strategy="min_p", value=0.5, metric="reward"))) == ["a"]


@pytest.mark.parametrize("changed", [{"ratio": 0.34}, {"strategy": "top_k_abs", "value": 1}, {"value": 0.2}])
def test_ties_go_to_the_earlier_group(changed):
    assert select_groups({"a": 1.0, "b": 1.0, "c": 1.0}, GroupFilter.from_keys(keys(**changed))) == ["a"]


# --- which vocabulary --------------------------------------------------------------------------------------------


def test_the_ratio_is_in_force_until_a_key_of_the_other_vocabulary_is_set():
    assert GroupFilter.from_keys(keys()).strategy == "ratio"
    assert GroupFilter.from_keys(keys(ratio=0.5, type="std_rev")).largest is False
    for changed in ({"strategy": "top_k"}, {"value": 0.9}, {"metric": "length"}, {"type": "largest"}):
        assert GroupFilter.from_keys(keys(**changed)).strategy != "ratio"
        assert GroupFilter.from_keys(keys(ratio=1, **changed)).strategy != "ratio"  # 1 is off: no contradiction


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ratio": 0.5, "value": 0.9}, "^ratio: contradicts rollout_filter_value=0.9: set it to 1"),
        ({"ratio": 0.5, "type": "largest"}, "^ratio: contradicts rollout_filter_type=largest"),
        ({"type": "std_rev", "strategy": "top_k"}, "^type: contradicts rollout_filter_strategy=top_k: set largest"),
        ({"type": "max_mean", "metric": "length"}, "^type: contradicts rollout_filter_metric=length"),
        ({"ratio": 0}, "^ratio: out of range: above 0 and at most 1"),
        ({"ratio": 1.01}, "^ratio: out of range"),
        ({"type": "sdt"}, "^type: unknown: std, std_rev, max_mean go with a ratio"),
        ({"strategy": "top_q"}, "^strategy: unknown: one of top_p"),
        ({"metric": "max_mean"}, "^metric: unknown: one of reward_variance"),
        ({"top_p_prob_mode": "log"}, "^top_p_prob_mode: unknown: one of linear, softmax"),
        ({"value": 1.5}, "^value: top_p wants a share"),
        ({"strategy": "top_k", "value": 3}, "^value: top_k wants a share"),
        ({"strategy": "top_k_abs", "value": 0.5}, "^value: top_k_abs wants a number of groups"),
        ({"strategy": "top_k_abs"}, None),  # 1.0 is one group
        ({"selection_eps": -1}, "^selection_eps: out of range: at least 0"),
    ],
)
def test_a_contradiction_or_a_wrong_value_is_named(changed, message):
    if message is None:
        assert GroupFilter.from_keys(keys(**changed)).value == 1
        return
    with pytest.raises(ValueError, match=message):
        GroupFilter.from_keys(keys(**changed))


def test_what_is_known_before_any_score():
    assert GroupFilter.from_keys(keys()).fixed_count(8) == 2
    assert GroupFilter.from_keys(keys(strategy="top_k", value=0.3)).fixed_count(8) == 2
    assert GroupFilter.from_keys(keys(strategy="top_k_abs", value=9)).fixed_count(8) == 8
    assert GroupFilter.from_keys(keys(value=0.9)).fixed_count(8) is None
    assert GroupFilter.from_keys(keys(strategy="top_k", include_zero=False)).fixed_count(8) is None
    assert GroupFilter.from_keys(keys(ratio=1)).keeps_all and not GroupFilter.from_keys(keys()).keeps_all
    assert not GroupFilter.from_keys(keys(type="largest")).keeps_all  # top_p drops groups without mass


# --- properties --------------------------------------------------------------------------------------------------

FILTERS = st.one_of(
    st.builds(lambda r, t: keys(ratio=r, type=t), st.floats(0.01, 1), st.sampled_from(["std", "std_rev", "max_mean"])),
    st.builds(
        lambda strategy, value, kind, zero, mode, eps: keys(
            strategy=strategy,
            value=value if strategy != "top_k_abs" else math.ceil(value * 6),
            type=kind,
            include_zero=zero,
            top_p_prob_mode=mode,
            selection_eps=eps,
        ),
        st.sampled_from(["top_p", "top_k", "top_k_abs", "min_p"]),
        st.floats(0.01, 1),
        st.sampled_from(["largest", "smallest"]),
        st.booleans(),
        st.sampled_from(["linear", "softmax"]),
        st.floats(0, 0.1),
    ),
)
GROUPS = st.dictionaries(st.integers(), st.lists(st.integers(0, 40).map(lambda x: x / 4), min_size=1, max_size=5))


@settings(deadline=None)
@given(GROUPS, FILTERS)
def test_kept_groups_are_a_prefix_of_the_ranking_in_the_order_given(groups, filter_keys):
    chosen = GroupFilter.from_keys(filter_keys)
    scores = {name: group_score([Member(value) for value in group], chosen.metric) for name, group in groups.items()}
    kept = select_groups(scores, chosen)
    assert kept == [name for name in groups if name in set(kept)]
    eligible = {name: score for name, score in scores.items() if chosen.include_zero or score > 1e-10}
    if chosen.strategy == "top_p" and not chosen.softmax:
        eligible = {name: score for name, score in eligible.items() if score > 0}
    assert set(kept) <= set(eligible)
    dropped = [score for name, score in eligible.items() if name not in kept]
    own = [scores[name] for name in kept]
    if own and dropped:
        assert min(own) >= max(dropped) if chosen.largest else max(own) <= min(dropped)
    if eligible and (chosen.softmax or chosen.strategy in ("top_k", "top_k_abs", "min_p")):
        assert kept
    if (count := chosen.fixed_count(len(groups))) is not None and groups:
        assert len(kept) == count


@settings(deadline=None)
@given(GROUPS, FILTERS, st.sampled_from([0.5, 2.0, 8.0]))
def test_shares_of_scores_do_not_depend_on_the_rewards_unit(groups, filter_keys, unit):
    chosen = dataclasses.replace(GroupFilter.from_keys(filter_keys), eps=0.0, softmax=False)
    plain, scaled = (
        {n: group_score([Member(value * k) for value in g], chosen.metric) for n, g in groups.items()}
        for k in (1.0, unit)
    )
    assert select_groups(plain, chosen) == select_groups(scaled, chosen)


@settings(deadline=None)
@given(GROUPS, st.floats(0.01, 1))
def test_a_greater_share_never_keeps_less(groups, share):
    scores = {name: float(np.std(group)) for name, group in groups.items()}
    for strategy in ("top_p", "top_k"):
        less, more = (
            set(select_groups(scores, GroupFilter.from_keys(keys(strategy=strategy, value=value, type="largest"))))
            for value in (share, min(1.0, share * 1.5))
        )
        assert less <= more
