"""What a panel's episodes say of a model: numbers for `summary.json`, and the same as a Markdown table.

Pure functions of the recorded episodes, so a summary can be made again from a `rollouts.jsonl` at any time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from ragen.eval.panels import solved
from ragen.eval.statistics import mean_interval, pass_at_k, wilson_interval
from ragen.llm_agent.trajectory import Trajectory

__all__ = ["Summary", "TagSummary", "markdown", "summarize_tag"]


class ApiUse(msgspec.Struct, kw_only=True):
    """What a tag's episodes took of an API."""

    calls: Annotated[int, Meta(description="tries of a reply, those that failed included")]
    retries: Annotated[int, Meta(description="calls that were made because one before had failed")]
    input_tokens: Annotated[int, Meta(description="of the replies that came, as the endpoint counts them")]
    output_tokens: int
    uncounted_replies: Annotated[int, Meta(description="replies that came without counts of tokens")]
    cost: Annotated[float | None, Meta(description="by price_per_million, in its currency; null: no price is set")]


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
    success_played: Annotated[float | None, Meta(description="solved / episodes that did not fail; None: all failed")]
    failed: int
    failures: Annotated[dict[str, int], Meta(description="reason → episodes")]
    ended: Annotated[dict[str, int], Meta(description="end reason of usable episodes → episodes")]

    api: Annotated[ApiUse | None, Meta(description="calls of an API, failed episodes included; null: none")] = None


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


def summarize_tag(episodes: Sequence[Trajectory], *, n: int, price: Mapping[str, float] | None = None) -> TagSummary:
    """Figures of one tag's episodes (at least one).

    Args:
        episodes: of the tag.
        n: episodes of each start.
        price: of a million tokens, `input` and `output`.
    """
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
        tokens=_mean(t.metrics.get("api_output_tokens", t.policy_mask.sum()) for t in usable),
        seconds=_mean(t.metrics["seconds"] for t in usable if "seconds" in t.metrics),
        success_played=hits / len(usable) if usable else None,
        failed=len(episodes) - len(usable),
        failures=dict(Counter(t.end_reason for t in episodes if not t.usable)),
        ended=dict(Counter(t.end_reason for t in usable)),
        api=_api_use(episodes, price),
    )


def _api_use(episodes: Sequence[Trajectory], price: Mapping[str, float] | None) -> ApiUse | None:
    if not any("api_calls" in t.metrics for t in episodes):
        return None
    total = {
        name: int(sum(t.metrics.get(f"api_{name}", 0.0) for t in episodes))
        for name in ("calls", "retries", "input_tokens", "output_tokens", "uncounted_replies")
    }
    cost = None
    if price is not None:
        cost = (total["input_tokens"] * price["input"] + total["output_tokens"] * price["output"]) / 1e6
    return ApiUse(**total, cost=cost)


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
    uses = [each.api for each in summary.tags.values() if each.api is not None]
    priced = any(use.cost is not None for use in uses)
    columns += ["calls", "retries", "input tokens", "output tokens"] if uses else []
    columns += ["cost"] if priced else []
    rows = [_row(tag, each, n) + _api_row(each.api, bool(uses), priced) for tag, each in summary.tags.items()]
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
        lines += [_over(tag, each) for tag, each in summary.tags.items() if each.failed]
    uncounted = sum(use.uncounted_replies for use in uses)
    if uncounted:
        lines += ["", f"{uncounted} replies came without counts of tokens, which the sums lack."]
    return "\n".join(lines) + "\n"


def _row(tag: str, each: TagSummary, n: int) -> list[str]:
    interval = f"{100 * each.success:.1f} % [{100 * each.success_low:.1f}, {100 * each.success_high:.1f}]"
    row = [tag, str(each.episodes), interval]
    row += [_percent(each.pass_at.get(str(n)))] if n > 1 else []
    row += [_number(each.mean_return, 3), _number(each.turns, 2), _percent(each.valid_actions)]
    row += [_percent(each.truncated_replies), _number(each.tokens, 1), _number(each.seconds, 2), str(each.failed)]
    return row


def _api_row(use: ApiUse | None, shown: bool, priced: bool) -> list[str]:
    if not shown:
        return []
    cells = ["calls", "retries", "input_tokens", "output_tokens"]
    row = ["" if use is None else str(getattr(use, cell)) for cell in cells]
    return [*row, *([_number(use.cost if use else None, 4)] if priced else [])]


def _over(tag: str, each: TagSummary) -> str:
    """What a success rate with failed episodes is over."""
    played = each.episodes - each.failed
    rest = f"over the {played} that did not fail it is {_percent(each.success_played)}" if played else "all failed"
    return f"{tag}: success is over all {each.episodes} episodes; {rest}."


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
