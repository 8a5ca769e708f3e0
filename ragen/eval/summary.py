"""What a panel's episodes say of a model: numbers for `summary.json`, and the same as a Markdown table.

Pure functions of the recorded episodes, so a summary can be made again from a `rollouts.jsonl` at any time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from ragen.eval.panels import solved
from ragen.eval.statistics import mean_interval, pass_at_k, wilson_interval
from ragen.llm_agent.trajectory import Trajectory

__all__ = ["Summary", "TagSummary", "markdown", "summarize_tag"]


class TagSummary(msgspec.Struct, kw_only=True):
    """Figures of one tag. Means are over usable episodes, None where there is none."""

    episodes: int
    starts: int
    solved: int
    success: Annotated[float, Meta(description="solved / episodes; failed ones count as not solved")]
    success_low: Annotated[float, Meta(description="Wilson 95 % interval; takes episodes as independent")]
    success_high: float
    success_clustered: Annotated[
        tuple[float, float] | None, Meta(description="n > 1: 95 % normal interval that counts each start once")
    ]
    pass_at: Annotated[dict[str, float], Meta(description="k → unbiased pass@k (Chen et al. 2021), mean over starts")]
    mean_return: float | None
    turns: float | None
    valid_actions: Annotated[float | None, Meta(description="mean share of actions asked for that exist")]
    truncated_replies: Annotated[float | None, Meta(description="share of replies cut at their token limit")]
    tokens: Annotated[float | None, Meta(description="sampled tokens per episode")]
    seconds: Annotated[float | None, Meta(description="wall seconds per episode, waiting for the engine included")]
    failed: int
    failures: Annotated[dict[str, int], Meta(description="reason → episodes")]
    ended: Annotated[dict[str, int], Meta(description="end reason of usable episodes → episodes")]


class Summary(msgspec.Struct, kw_only=True):
    """`summary.json` of an evaluation."""

    schema_version: int = 1
    panel: Annotated[dict[str, Any], Meta(description="name, hash, n, tags, success")]
    identity_hash: Annotated[str, Meta(description="hash of `identity`: equal ones may be continued by each other")]
    identity: Annotated[dict[str, Any], Meta(description="all that can change results, see docs/evaluation.md")]
    versions: dict[str, Any]
    complete: Annotated[bool, Meta(description="every episode of the panel was played")]
    wall_s: Annotated[float, Meta(description="seconds of the last session, start-up left out")]
    kept: Annotated[int, Meta(description="episodes that an earlier session had played")]
    tags: dict[str, TagSummary]


def summarize_tag(episodes: Sequence[Trajectory], *, n: int) -> TagSummary:
    """Figures of one tag's episodes (at least one); n: episodes of each start."""
    usable = [t for t in episodes if t.usable]
    by_start: dict[int, list[bool]] = defaultdict(list)
    for t in episodes:
        by_start[t.seed].append(solved(t))
    hits = sum(map(solved, episodes))
    low, high = wilson_interval(hits, len(episodes))
    clustered = None
    if n > 1 and len(by_start) > 1:
        clustered = mean_interval([float(solved(t)) for t in episodes], [t.seed for t in episodes])[1:]
    full = [members for members in by_start.values() if len(members) == n]  # a stopped panel may lack members
    return TagSummary(
        episodes=len(episodes),
        starts=len(by_start),
        solved=hits,
        success=hits / len(episodes),
        success_low=low,
        success_high=high,
        success_clustered=clustered,
        pass_at={str(k): _mean(pass_at_k(n, sum(m), k) for m in full) for k in range(1, n + 1)} if full else {},
        mean_return=_mean(t.episode_return for t in usable),
        turns=_mean(t.num_turns for t in usable),
        valid_actions=_mean(t.metrics["action_is_valid"] for t in usable),
        truncated_replies=_share_truncated(usable),
        tokens=_mean(t.policy_mask.sum() for t in usable),
        seconds=_mean(t.metrics["seconds"] for t in usable if "seconds" in t.metrics),
        failed=len(episodes) - len(usable),
        failures=dict(Counter(t.end_reason for t in episodes if not t.usable)),
        ended=dict(Counter(t.end_reason for t in usable)),
    )


def _mean(values: Iterable[float]) -> float | None:
    column = list(values)
    return float(np.mean(column)) if column else None


def _share_truncated(usable: Sequence[Trajectory]) -> float | None:
    replies = sum(t.num_turns for t in usable)
    return sum(t.metrics.get("truncated_replies", 0.0) for t in usable) / replies if replies else None


def markdown(summary: Summary) -> str:
    """The summary as a heading and a table with one row a tag."""
    n = summary.panel["n"]
    columns = ["tag", "episodes", "success [95 %]", *([f"pass@{n}"] if n > 1 else [])]
    columns += ["return", "turns", "valid actions", "truncated replies", "tokens", "seconds", "failed"]
    rows = [_row(tag, each, n) for tag, each in summary.tags.items()]
    lines = [
        f"# {summary.identity['model']['name']} on {summary.panel['name']}",
        "",
        f"panel {summary.panel['hash']}, prompts {summary.identity['prompt_hash']}, "
        f"model {summary.identity['model']['revision']}, evaluation {summary.identity_hash}"
        + ("" if summary.complete else "; STOPPED before its end: the same command continues it"),
        "",
        f"| {' | '.join(columns)} |",
        f"|{'|'.join(['---', *['---:'] * (len(columns) - 1)])}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    if n > 1:
        lines += ["", f"The interval takes the {n} episodes of a start as independent; summary.json has the other."]
    failures = [f"{count} {tag} {why}" for tag, each in summary.tags.items() for why, count in each.failures.items()]
    if failures:
        lines += ["", f"Failed, and counted as not solved: {', '.join(failures)}."]
    return "\n".join(lines) + "\n"


def _row(tag: str, each: TagSummary, n: int) -> list[str]:
    interval = f"{100 * each.success:.1f} % [{100 * each.success_low:.1f}, {100 * each.success_high:.1f}]"
    row = [tag, str(each.episodes), interval]
    row += [_percent(each.pass_at.get(str(n)))] if n > 1 else []
    row += [_number(each.mean_return, 3), _number(each.turns, 2), _percent(each.valid_actions)]
    row += [_percent(each.truncated_replies), _number(each.tokens, 1), _number(each.seconds, 2), str(each.failed)]
    return row


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
