"""Statistics against numbers worked by hand, and against brute force."""

import itertools
import math

import numpy as np
import pytest

from ragen.eval.statistics import mean_interval, paired_difference, pass_at_k, wilson_interval


def test_wilson_interval_of_textbook_cases():
    # 15 of 50: centre (0.3 + 3.8415/100) / 1.07683 = 0.31427; half 1.95996 * sqrt(0.0042 + 0.00038415) / 1.07683
    assert wilson_interval(15, 50) == pytest.approx((0.1910, 0.4375), abs=1e-4)
    # 0 of 10: from 0 to z²/(n + z²) = 3.84146 / 13.84146
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-5)
    assert wilson_interval(10, 10) == pytest.approx((1 - 0.277533, 1.0), abs=1e-5)


def test_wilson_ends_solve_the_score_equation():
    for end in wilson_interval(7, 23):
        assert abs(7 / 23 - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / 23), rel=1e-5)


@pytest.mark.parametrize(("solved", "episodes"), [(0, 0), (3, 2), (-1, 2)])
def test_wilson_refuses_impossible_counts(solved, episodes):
    with pytest.raises(ValueError, match="successes <= episodes and an episode"):
        wilson_interval(solved, episodes)


def test_paired_difference_by_hand():
    # differences 1, 0, 1, 0: mean 0.5, sd 0.57735, half width 1.96 * 0.57735 / 2
    found = paired_difference([0, 0, 0, 1], [1, 0, 1, 1])
    assert found == pytest.approx((0.5, 0.5 - 0.565793, 0.5 + 0.565793), abs=1e-5)


def test_pairing_removes_what_the_episodes_share():
    hard = np.random.default_rng(0).normal(0, 10, 200)
    mean, low, high = paired_difference(hard, hard + 1)
    assert mean == pytest.approx(1.0) and high - low < 1e-9


def test_members_of_one_group_count_once():
    # two groups of two that agree within: differences 1, 1, 0, 0. Cluster sums about the mean: 1, -1;
    # variance 2/1 * 2 / 16 = 0.25, where four independent pairs would have 4/3 * 1 / 16
    mean, low, high = mean_interval([1, 1, 0, 0], ["a", "a", "b", "b"])
    assert (mean, high - mean) == pytest.approx((0.5, 1.959964 * 0.5), abs=1e-5)
    independent = mean_interval([1, 1, 0, 0])
    assert independent[2] - mean == pytest.approx(1.959964 * math.sqrt(1 / 12), abs=1e-5)


def test_the_interval_covers_the_mean_about_95_times_in_100():
    rng = np.random.default_rng(1)
    intervals = [mean_interval(rng.normal(0.3, 1.0, 60)) for _ in range(1000)]
    assert 0.93 < np.mean([low < 0.3 < high for _, low, high in intervals]) < 0.97


@pytest.mark.parametrize(
    ("values", "clusters", "says"),
    [([1.0], None, "at least two"), ([1, 2], ["a", "a"], "at least two"), ([1, 2], ["a"], "cluster keys")],
)
def test_intervals_refuse_too_little(values, clusters, says):
    with pytest.raises(ValueError, match=says):
        mean_interval(values, clusters)


def test_pairs_must_be_pairs():
    with pytest.raises(ValueError, match="equally many"):
        paired_difference([1, 2], [1])


def test_pass_at_k_by_hand_and_by_drawing_every_subset():
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)  # 1 - C(3,2)/C(4,2) = 1 - 3/6
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    assert pass_at_k(5, 5, 5) == 1.0 and pass_at_k(5, 0, 5) == 0.0
    outcomes = [1, 1, 0, 0, 0, 0, 0]
    for k in range(1, 8):
        share = np.mean([any(drawn) for drawn in itertools.combinations(outcomes, k)])
        assert pass_at_k(7, 2, k) == pytest.approx(share)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 0), (4, 1, 5), (4, 5, 1)])
def test_pass_at_k_refuses_what_cannot_be_drawn(n, c, k):
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(n, c, k)
