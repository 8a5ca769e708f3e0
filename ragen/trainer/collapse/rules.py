"""When a signal is bad: one named rule each, whose threshold is `collapse_detection.thresholds.<name>` (null: off).

A rule is a function of its signal's value, what was normal in the run's first steps, and the threshold. A rule of your
own is registered with `register_rule` and takes a threshold of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["RULES", "Rule", "register_rule"]

#: (value, normal, threshold) → why the value is bad, or None where it is not.
#: normal: median of the signal over the run's first steps; None until they are over.
Judge = Callable[[float, float | None, float], str | None]


@dataclass(frozen=True)
class Rule:
    """A registered rule."""

    name: str
    #: Which signal it judges: the end of a metric `collapse/<tag>/<signal>`.
    signal: str
    judge: Judge


RULES: dict[str, Rule] = {}


def register_rule(name: str, *, signal: str) -> Callable[[Judge], Judge]:
    """Register a rule under `name`. A name that is taken raises ValueError."""

    def decorator(judge: Judge) -> Judge:
        if name in RULES:
            raise ValueError(f"collapse rule {name!r} is already registered to {RULES[name].judge.__qualname__}")
        RULES[name] = Rule(name, signal, judge)
        return judge

    return decorator


def _at_least(value: float, threshold: float, what: str) -> str | None:
    return f"{what}: {value:.3g}, bad from {threshold:g}" if value >= threshold else None


def _fallen(value: float, normal: float | None, share: float, what: str) -> str | None:
    if normal is None or value >= share * normal:
        return None
    return f"{what}: {value:.3g}, below {share:g} x {normal:.3g} of the first steps"


def _risen(value: float, normal: float | None, factor: float, what: str) -> str | None:
    if normal is None or value <= factor * normal:
        return None
    return f"{what}: {value:.3g}, above {factor:g} x {normal:.3g} of the first steps"


@register_rule("flat_groups", signal="flat_unsolved_share")
def flat_groups(value: float, normal: float | None, threshold: float) -> str | None:
    """Members of a group all end alike without having solved it: nothing is left to compare."""
    return _at_least(value, threshold, "share of groups that all end alike, unsolved")


@register_rule("entropy_fall", signal="entropy")
def entropy_fall(value: float, normal: float | None, threshold: float) -> str | None:
    """The policy always says the same: it explores no more."""
    return _fallen(value, normal, threshold, "entropy per sampled token")


@register_rule("entropy_rise", signal="entropy")
def entropy_rise(value: float, normal: float | None, threshold: float) -> str | None:
    """The policy says anything: its distribution has come apart."""
    return _risen(value, normal, threshold, "entropy per sampled token")


@register_rule("length_fall", signal="reply_length")
def length_fall(value: float, normal: float | None, threshold: float) -> str | None:
    """Replies shrink to nothing: the thoughts are gone."""
    return _fallen(value, normal, threshold, "tokens per reply")


@register_rule("length_rise", signal="reply_length")
def length_rise(value: float, normal: float | None, threshold: float) -> str | None:
    """Replies grow without end."""
    return _risen(value, normal, threshold, "tokens per reply")


@register_rule("truncation", signal="truncated_share")
def truncation(value: float, normal: float | None, threshold: float) -> str | None:
    """Replies do not end any more."""
    return _at_least(value, threshold, "share of replies cut off at their token limit")


@register_rule("repetition", signal="repeated_ngram_share")
def repetition(value: float, normal: float | None, threshold: float) -> str | None:
    """Replies go round in circles."""
    return _at_least(value, threshold, "share of repeated n-grams in replies")


@register_rule("gradient_rise", signal="grad_norm")
def gradient_rise(value: float, normal: float | None, threshold: float) -> str | None:
    """Gradients blow up: a sign that comes with a collapse or before it."""
    if not math.isfinite(value):
        return "gradient norm: not a finite number"
    return _risen(value, normal, threshold, "gradient norm before clipping")
