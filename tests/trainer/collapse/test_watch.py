"""Rules and patience on sequences of signals."""

import math

import pytest

from ragen.config import load
from ragen.trainer.collapse.rules import RULES, register_rule
from ragen.trainer.collapse.watch import CollapseWatch


def watch(patience=2, baseline_steps=3, **thresholds):
    return CollapseWatch(thresholds, patience=patience, baseline_steps=baseline_steps)


def alarms(one, signal, values, tag="A"):
    """The rules that are alarms after each value."""
    return [[alarm.rule for alarm in one.observe({f"collapse/{tag}/{signal}": value})[1]] for value in values]


def test_one_noisy_step_is_no_alarm_and_a_good_one_starts_the_count_anew():
    one = watch(repetition=0.5)
    assert alarms(one, "repeated_ngram_share", [0.9, 0.1, 0.9, 0.5]) == [[], [], [], ["repetition"]]


@pytest.mark.parametrize(
    ("rule", "threshold", "signal", "normal", "good", "bad"),
    [
        ("entropy_fall", 0.1, "entropy", 0.5, 0.06, 0.04),
        ("entropy_rise", 3.0, "entropy", 0.5, 1.4, 1.6),
        ("length_fall", 0.1, "reply_length", 100, 11, 9),
        ("length_rise", 4.0, "reply_length", 100, 399, 401),
        ("gradient_rise", 20.0, "grad_norm", 1.0, 19.0, 21.0),
    ],
)
def test_rules_that_compare_with_the_first_steps(rule, threshold, signal, normal, good, bad):
    # one outlier among the first steps does not move their median
    first = [normal, normal * 50, normal]
    assert alarms(watch(patience=1, **{rule: threshold}), signal, [*first, good, bad]) == [[], [], [], [], [rule]]


@pytest.mark.parametrize(
    ("rule", "signal"),
    [
        ("flat_groups", "flat_unsolved_share"),
        ("truncation", "truncated_share"),
        ("repetition", "repeated_ngram_share"),
    ],
)
def test_rules_with_a_fixed_threshold(rule, signal):
    assert alarms(watch(patience=1, **{rule: 0.5}), signal, [0.49, 0.5]) == [[], [rule]]


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_gradient_that_is_no_number_is_bad_from_the_first_step(value):
    assert alarms(watch(patience=1, gradient_rise=20.0), "grad_norm", [value]) == [["gradient_rise"]]


def test_the_alarm_says_which_tag_which_signal_and_why():
    one = watch(patience=1, baseline_steps=1, entropy_fall=0.1)
    one.observe({"collapse/A/entropy": 0.5, "collapse/B/entropy": 0.5})
    counts, found = one.observe({"collapse/A/entropy": 0.04, "collapse/B/entropy": 0.5, "train/A/entropy": 0.0})
    assert [str(alarm) for alarm in found] == [
        "A: entropy_fall for 1 looks in a row (entropy per sampled token: 0.04, below 0.1 x 0.5 of the first steps)"
    ]
    assert counts == {"collapse/A/alarm/entropy_fall": 1.0, "collapse/B/alarm/entropy_fall": 0.0}


def test_a_step_without_the_signal_leaves_the_count():
    one = watch(truncation=0.5)
    one.observe({"collapse/A/truncated_share": 0.9})
    one.observe({"train/episodes": 4.0})
    assert alarms(one, "truncated_share", [0.9]) == [["truncation"]]


def test_a_rule_without_a_threshold_is_off():
    assert alarms(watch(patience=1, truncation=None), "truncated_share", [1.0]) == [[]]


def test_a_resumed_run_goes_on_where_it_was():
    history = [{"collapse/A/entropy": value} for value in (0.5, 0.5, 0.5, 0.01)]
    one = watch(entropy_fall=0.1)
    one.replay(history)
    assert alarms(one, "entropy", [0.01]) == [["entropy_fall"]]


def test_every_rule_has_a_threshold_in_base_and_every_threshold_a_rule():
    assert set(load("base").collapse_detection.thresholds) == set(RULES)


def test_a_rule_is_registered_once():
    with pytest.raises(ValueError, match="'repetition' is already registered to repetition"):
        register_rule("repetition", signal="x")(lambda value, normal, threshold: None)
