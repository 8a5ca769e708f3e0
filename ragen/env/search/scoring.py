"""Exact match and F1 between answers, normalised as SQuAD does (arXiv:1606.05250)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(answer: str) -> str:
    """Lower case, without ASCII punctuation, articles and surplus blanks."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: Sequence[str]) -> bool:
    """Whether the answer equals one of the right ones, both normalised."""
    return any(normalise(answer) == normalise(right) for right in gold)


def f1(answer: str, gold: Sequence[str]) -> float:
    """Harmonic mean of precision and recall over words, in [0, 1]: the best over the right answers."""
    return max((_f1(normalise(answer).split(), normalise(right).split()) for right in gold), default=0.0)


def _f1(answer: list[str], right: list[str]) -> float:
    if not answer or not right:
        return float(answer == right)
    common = sum((Counter(answer) & Counter(right)).values())
    return 2 * common / (len(answer) + len(right))  # = 2 · precision · recall / (precision + recall)


def answer_reward(answer: str, gold: Sequence[str], min_f1: float = 0.3) -> float:
    """1 for an exact match; else F1 where it reaches `min_f1`; else 0."""
    if exact_match(answer, gold):
        return 1.0
    score = f1(answer, gold)
    return score if score >= min_f1 else 0.0
