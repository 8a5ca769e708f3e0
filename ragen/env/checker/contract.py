"""Checks of the contract's letter: what the methods return, what the environment says of itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ragen.env.checker.registry import check
from ragen.env.checker.worker import ADVICE, FAULT, INFO_KEYS, SHORT, Bench, Finding, short

_STEP_RETURNS = "return observation (str), reward (float), terminated (bool), truncated (bool), info (dict)"


@check()
def builds(bench: Bench) -> Iterator[Finding]:
    """The environment imports and builds, within a minute."""
    bench.fresh()
    yield from ()


@check("builds")
def returns(bench: Bench) -> Iterator[Finding]:
    """`reset` and `step` return what the contract says: text, number, flags and a dict, in that order."""
    for seed in bench.seeds(5):
        probe = bench.fresh()
        result = probe.raw_reset(seed)
        problem = _reset_problem(result)
        if problem:
            fix = "return (observation, info): text and a dict"
            yield bench.finding("returns", FAULT, f"reset returned {problem}", fix, at="reset", seed=seed)
            return
        rng = np.random.default_rng(seed)
        for _ in range(min(SHORT, bench.spec.max_actions_per_traj)):
            action = probe.random_action(rng)
            if action is None:
                break
            result = probe.raw_step(action)
            problem = _step_problem(result)
            if problem:
                what = f"step({short(action)}) returned {problem}"
                yield bench.finding("returns", FAULT, what, _STEP_RETURNS, at="step", seed=seed)
                return
            if result[2] or result[3]:
                break


def _reset_problem(result: Any) -> str | None:
    if not isinstance(result, tuple) or len(result) != 2:
        return f"{short(result)}, not two values"
    if not isinstance(result[0], str):
        return f"a {type(result[0]).__name__} as observation, not text"
    return None if isinstance(result[1], dict) else f"a {type(result[1]).__name__} as info, not a dict"


def _step_problem(result: Any) -> str | None:
    if not isinstance(result, tuple) or len(result) != 5:
        return f"{short(result)}, not five values"
    observation, reward, terminated, truncated, info = result
    if not isinstance(observation, str):
        return f"a {type(observation).__name__} as observation, not text"
    if not isinstance(reward, (int, float, np.integer, np.floating)) or isinstance(reward, bool):
        return f"{short(reward)} as reward, not a number"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            return f"{short(flag)} as {name}, not True or False"
    if terminated and truncated:
        return "terminated and truncated at once; the task's own end goes first"
    return None if isinstance(info, dict) else f"a {type(info).__name__} as info, not a dict"


@check("returns")
def info_keys(bench: Bench) -> Iterator[Finding]:
    """`info` of every step holds action_is_valid, action_is_effective and success, each True or False."""
    missing: dict[str, str] = {}
    seed = bench.job.seed
    for seed in bench.seeds(5):
        for step in bench.play(bench.fresh(), seed).steps:
            for key in INFO_KEYS:
                if key not in step.info:
                    missing.setdefault(key, f"lacks {key!r}")
                elif not isinstance(step.info[key], (bool, np.bool_)):
                    missing.setdefault(key, f"has {key!r} as {short(step.info[key])}")
        if missing:
            break
    if missing:
        what = f"info of step {', '.join(missing.values())}"
        fix = "give each of action_is_valid, action_is_effective, success as True or False in every step"
        yield bench.finding("info_keys", FAULT, what, fix, at="step", seed=seed)


@check("returns")
def describes_itself(bench: Bench) -> Iterator[Finding]:
    """There is an instruction, and a reward_range whose ends are numbers in order."""
    probe = bench.fresh()
    probe.reset(bench.job.seed)
    text = probe.instruction()
    if not isinstance(text, str) or not text.strip():
        fix = "describe goal, symbols and rewards as configured"
        yield bench.finding("describes_itself", FAULT, f"instruction() is {short(text)}", fix, at="instruction")
    reward_range = probe.env.reward_range
    try:
        low, high = (float(end) for end in reward_range)
    except (TypeError, ValueError):
        low, high = 1.0, 0.0
    if not low <= high:
        fix = "set it to (least, greatest) reward of one step"
        yield bench.finding("describes_itself", FAULT, f"reward_range is {short(reward_range)}", fix, at="reward_range")
    elif math.isinf(low) or math.isinf(high):
        what = f"reward_range {short(reward_range)} promises nothing"
        fix = "declare the least and greatest reward of one step, so that a wrong one is found"
        yield bench.finding("describes_itself", ADVICE, what, fix, at="reward_range")


@check("returns")
def action_names(bench: Bench) -> Iterator[Finding]:
    """Action names are texts that a reply can hold: not empty, without `||` or tags, different whatever their case."""
    separator = bench.job.limits.action_sep
    for seed in bench.seeds(5):
        probe = bench.probe()
        probe.reset(seed)
        lookup = probe.lookup()
        drawn = probe.random_action(np.random.default_rng(seed))
        problem = _names_problem(lookup, separator) if lookup is not None else None
        if problem:
            fix = f"use short plain names, unique without regard to case, free of {separator!r}, '<' and '>'"
            yield bench.finding("action_names", FAULT, problem, fix, at="action_lookup", seed=seed)
            return
        if drawn is None and lookup is None:
            what = "the action is free text, and random_action draws none"
            fix = "override random_action with a plausible action: it is the floor of evaluations, and lets checks play"
            yield bench.finding("action_names", ADVICE, what, fix, at="random_action")
            return
        if drawn is not None and (not isinstance(drawn, str) or separator in drawn or drawn != drawn.strip()):
            what = f"random_action drew {short(drawn)}, which no reply can hold"
            fix = f"return text without {separator!r} and without blanks around it"
            yield bench.finding("action_names", FAULT, what, fix, at="random_action", seed=seed)
            return
        if lookup is not None and drawn is not None and drawn.lower() not in {name.lower() for name in lookup}:
            what = f"random_action drew {short(drawn)}, which action_lookup does not name"
            fix = "return one of its names"
            yield bench.finding("action_names", FAULT, what, fix, at="random_action", seed=seed)
            return


def _names_problem(lookup: Any, separator: str) -> str | None:
    if not isinstance(lookup, Mapping) or not lookup:
        return f"action_lookup() is {short(lookup)}, neither a mapping of names to values nor None"
    for name in lookup:
        if not isinstance(name, str) or not name.strip() or name != name.strip():
            return f"the action name {short(name)} is no plain text"
        if separator in name:
            return f"the action name {short(name)} holds {separator!r}, which separates the actions of a reply"
        if "<" in name or ">" in name:
            return f"the action name {short(name)} holds '<' or '>', which mark the parts of a reply"
    twice = [name for name, count in Counter(name.lower() for name in lookup).items() if count > 1]
    return f"several actions are called {twice[0]!r}: names are matched whatever their case" if twice else None
