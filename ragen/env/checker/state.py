"""Checks of randomness and state: seeds, luck, what instances share, what `reset`, `close`, pickling leave behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ragen.env.base import Env
from ragen.env.checker.registry import check
from ragen.env.checker.worker import (
    ADVICE,
    FAULT,
    INFO_KEYS,
    SHORT,
    Bench,
    CallFailed,
    Episode,
    Finding,
    Probe,
    inner,
    short,
)
from ragen.env.gym_adapter import GymAdapter

_STREAMS = "call seed_streams(seed, luck) first in reset, then draw from self.level_rng and self.luck_rng only"
_OWN_STATE = "keep state in attributes of self that reset makes anew, never in classes, modules or default values"
#: Members of a group whose starts are compared.
_MEMBERS = 8


@check("returns")
def global_random(bench: Bench) -> Iterator[Finding]:
    """No global random generator is drawn from or seeded: `random`, `numpy.random`, and torch's where it is loaded."""
    bench.fresh().reset(bench.job.seed)  # what imports do to generators has happened now
    touched: dict[str, set[str]] = {}

    def watch(call: str, function: Callable[..., Any], *args: Any) -> Any:
        before = _global_generators()
        result = function(*args)
        for name, state in _global_generators().items():
            if name in before and state != before[name]:
                touched.setdefault(name, set()).add(call)
        return result

    for seed in bench.seeds(5):
        probe = watch("reset", bench.fresh)
        watch("reset", probe.reset, seed)
        rng = np.random.default_rng(seed)
        for _ in range(10):
            action = watch("random_action", probe.random_action, rng)
            watch("oracle_action", probe.oracle_action)
            if action is None:
                break
            step = watch("step", probe.step, action)
            watch("render", probe.render)
            if step.terminated or step.truncated:
                break
        if touched:
            break
    for name, calls in touched.items():
        what = f"{' and '.join(sorted(calls))} touched the global generator of {name}"
        fix = f"{_STREAMS}; never seed or use a generator that the whole process shares"
        yield bench.finding("global_random", FAULT, what, fix, at=min(calls), seed=seed)


def _global_generators() -> dict[str, bytes]:
    """Module → its generator's state."""
    states = {"random": pickle.dumps(random.getstate())}
    states["numpy.random"] = pickle.dumps(np.random.get_state(legacy=False))
    torch = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


@check("global_random")
def shared_state(bench: Bench) -> Iterator[Finding]:
    """Instances share nothing that changes: no config values, no class attributes, no module variables."""
    one, other = bench.fresh(), bench.fresh()
    shared = sorted(_mutable_parts(one.env.config).keys() & _mutable_parts(other.env.config).keys())
    if shared:
        name = _mutable_parts(one.env.config)[shared[0]]
        what = f"two environments share one object as their config's {name}"
        fix = "use dataclasses.field(default_factory=...) that makes a new object each time"
        yield bench.finding("shared_state", FAULT, what, fix, at="config_class")
        return
    for seed in bench.seeds(3):
        before = _variables(one.env)
        alone = bench.play(bench.fresh(), seed)
        after = _variables(one.env)
        changed = sorted(name for name in after if before.get(name) != after[name])
        if changed:
            difference = alone.difference(_interleaved(bench, seed)) or alone.difference(
                bench.play(bench.fresh(), seed)
            )
            if difference:
                what = (
                    f"{', '.join(changed)} changed, and an episode depends on what other environments do: {difference}"
                )
                yield bench.finding("shared_state", FAULT, what, _OWN_STATE, at="step", seed=seed)
                return
        on_class = [name for name in changed if ":" not in name]
        if on_class:
            what = f"the class attribute {on_class[0]} changes while an environment plays"
            fix = "make it an attribute of self in __init__, or a functools.lru_cache if it is one"
            yield bench.finding("shared_state", ADVICE, what, fix, at="step", seed=seed)
            return


def _interleaved(bench: Bench, seed: int) -> Episode:
    """The episode of `seed`, another environment playing other seeds beside it, step by step."""
    beside, seeds, over = bench.fresh(), itertools.count(seed + 1), True

    def choose(probe: Probe, rng: np.random.Generator) -> str | None:
        nonlocal over
        if over:
            beside.reset(next(seeds))
        action = beside.random_action(np.random.default_rng(seed))
        step = beside.step(action) if action is not None else None
        over = step is None or step.terminated or step.truncated
        return probe.random_action(rng)

    return bench.play(bench.fresh(), seed, choose=choose)


def _mutable_parts(value: Any, name: str = "") -> dict[int, str]:
    """Identity → dotted name of every object inside a config that could be changed in place."""
    found = {}
    if isinstance(value, (list, dict, set, bytearray, deque, np.ndarray)) or hasattr(value, "__dict__"):
        found[id(value)] = name or "whole object"
    parts: dict[Any, Any] = {}
    if isinstance(value, dict):
        parts = value
    elif isinstance(value, (list, tuple)):
        parts = dict(enumerate(value))
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        parts = vars(value)
    for key, part in parts.items():
        if not isinstance(part, type) and not callable(part):
            found.update(_mutable_parts(part, f"{name}.{key}" if name else str(key)))
    return found


_VALUES = (
    bool, int, float, str, bytes, tuple, list, dict, set, frozenset, bytearray, deque, np.ndarray,
    np.random.Generator, np.random.RandomState, random.Random,
)  # fmt: skip


def _variables(env: Env) -> dict[str, bytes]:
    """`Class.attribute` and `module:variable` → value, of the environment's own classes and modules."""
    ours = {Env, GymAdapter, *Env.__mro__}
    classes = [cls for cls in type(inner(env)).__mro__ if cls not in ours]
    values = {f"{cls.__name__}.{name}": value for cls in classes for name, value in vars(cls).items()}
    for name in {cls.__module__ for cls in classes}:
        values.update({f"{name}:{key}": value for key, value in vars(sys.modules[name]).items()})
    frozen = {}
    for name, value in values.items():
        if isinstance(value, _VALUES) and not name.partition(":")[2].startswith("__"):
            with contextlib.suppress(Exception):  # what cannot be compared is left out
                frozen[name] = pickle.dumps(value)
    return frozen


@check("shared_state")
def same_episode(bench: Bench) -> Iterator[Finding]:
    """The same seed and the same actions give the same episode, in two new environments."""
    for seed in bench.seeds():
        difference = bench.play(bench.fresh(), seed).difference(bench.play(bench.fresh(), seed))
        if difference:
            what = f"one seed gave two episodes: {difference}"
            yield bench.finding("same_episode", FAULT, what, _STREAMS, at="reset", seed=seed)
            return


@check("same_episode")
def alone_or_beside(bench: Bench) -> Iterator[Finding]:
    """An episode is the same whether or not another environment plays beside it."""
    for seed in bench.seeds(5):
        difference = bench.play(bench.fresh(), seed).difference(_interleaved(bench, seed))
        if difference:
            what = f"an episode differs when another environment plays beside it: {difference}"
            yield bench.finding("alone_or_beside", FAULT, what, _OWN_STATE, at="step", seed=seed)
            return


def digest(bench: Bench) -> list[Episode]:
    """Three episodes in plain values, to be compared between processes."""
    episodes = [bench.play(bench.fresh(), seed) for seed in bench.seeds(3)]
    for episode in episodes:
        episode.steps = [step._replace(info=dict(zip(INFO_KEYS, step.seen[-1], strict=True))) for step in episode.steps]
    return episodes


#: Main of the other process: standard input brings the path, the job and the file to write.
_ELSEWHERE = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); job, out = pickle.load(sys.stdin.buffer); "
    "from ragen.env.checker.worker import Bench; from ragen.env.checker.state import digest; "
    "open(out, 'wb').write(pickle.dumps(digest(Bench(job))))"
)


@check("same_episode")
def other_process(bench: Bench) -> Iterator[Finding]:
    """The same seed gives the same episode in another process, where Python hashes text differently."""
    here = digest(bench)
    other_hashes = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "digest"
        done = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE],
            input=pickle.dumps(sys.path) + pickle.dumps((bench.job, str(out))),
            env={**os.environ, "PYTHONHASHSEED": other_hashes},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        there = pickle.loads(out.read_bytes()) if done.returncode == 0 else None
    if there is None:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        what = f"in a new process an episode ends with exit status {done.returncode}: {' '.join(last)}"
        fix = "let the environment need nothing that earlier calls in a process have set up"
        yield bench.finding("other_process", FAULT, what, fix, at="reset", seed=bench.job.seed)
        return
    for one, two in zip(here, there, strict=False):
        difference = one.difference(two)
        if difference:
            what = f"one seed gave two episodes in two processes: {difference}"
            fix = "neither use hash() of text nor the order of a set: sort it, or keep a list"
            yield bench.finding("other_process", FAULT, what, fix, at="reset", seed=one.seed)
            return


@check("same_episode")
def group_start(bench: Bench) -> Iterator[Finding]:
    """Members of a group, who share a seed and each have their own luck, start alike."""
    for seed in bench.seeds(5):
        first = None
        for luck in (None, *range(_MEMBERS)):
            probe = bench.probe()
            start = {
                "observation": probe.reset(seed, luck),
                "picture": probe.view(),
                "instruction": probe.instruction(),
            }
            lookup = probe.lookup()
            start["action_lookup"] = None if lookup is None else list(lookup)
            first = first or start
            parts = [name for name in start if start[name] != first[name]]
            if parts:
                one, two = short(first[parts[0]]), short(start[parts[0]])
                what = f"{parts[0]} depends on luck: {one} without, {two} with luck {luck}"
                fix = "draw everything that is there at the start from self.level_rng, what happens later from luck_rng"
                yield bench.finding("group_start", FAULT, what, fix, at="reset", seed=seed)
                return


@check("same_episode")
def own_luck(bench: Bench) -> Iterator[Finding]:
    """A member's luck can be had again: equal seed and equal luck give the same episode."""
    for seed in bench.seeds():
        luck = seed % 7
        difference = bench.play(bench.fresh(), seed, luck).difference(bench.play(bench.fresh(), seed, luck))
        if difference:
            what = f"one seed with luck {luck} gave two episodes: {difference}"
            yield bench.finding("own_luck", FAULT, what, _STREAMS, at="reset", seed=seed)
            return
    for seed in bench.seeds(3):
        probe = bench.fresh()
        probe.reset(seed, 1)
        before = _state_of(probe.env, "level_rng")
        action = probe.random_action(np.random.default_rng(seed))
        if action is not None:
            probe.step(action)
        if before is not None and before != _state_of(probe.env, "level_rng"):
            what = "step draws from level_rng: all members of a group have the same luck"
            fix = "draw what happens after the start from self.luck_rng"
            yield bench.finding("own_luck", ADVICE, what, fix, at="step", seed=seed)
            return


def _state_of(env: Env, stream: str) -> Any:
    generator = getattr(env, stream, None)
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else None


@check("same_episode", "own_luck")
def seeds_differ(bench: Bench) -> Iterator[Finding]:
    """Different seeds give different starts, or at least (where the start hides something) different episodes."""
    starts, episodes = set(), set()
    seeds = list(bench.seeds())
    for seed in seeds:
        probe = bench.probe()
        starts.add((probe.reset(seed), probe.view(), probe.instruction(), tuple(probe.lookup() or ())))
        if len(starts) > 1:
            return
        episodes.add(_with_fixed_draws(bench, seed, 0))
    # Where luck alone makes episodes differ, they say nothing of hidden starts.
    by_luck = {_with_fixed_draws(bench, bench.job.seed, luck) for luck in range(5)}
    if len(seeds) >= 10 and (len(episodes) == 1 or len(by_luck) > 1):
        what = f"{len(seeds)} seeds all start alike: training would see a single task"
        fix = "draw the start from self.level_rng; ignore this if the task has one start only"
        yield bench.finding("seeds_differ", ADVICE, what, fix, at="reset", seed=bench.job.seed)


def _with_fixed_draws(bench: Bench, seed: int, luck: int) -> tuple[Any, ...]:
    """What an episode shows whose random actions are drawn alike for every seed."""
    draws = np.random.default_rng(0)
    episode = bench.play(bench.probe(), seed, luck, choose=lambda probe, _: probe.random_action(draws))
    return tuple(step.seen for step in episode.steps)


@check("same_episode", "own_luck")
def reset_forgets(bench: Bench) -> Iterator[Finding]:
    """`reset` after an episode, and in the middle of one, starts as in a new environment."""
    used = bench.fresh()
    for seed in bench.seeds(10):
        bench.play(used, seed + 1, most=3 if seed % 2 else SHORT)
        difference = bench.play(bench.fresh(), seed).difference(bench.play(used, seed))
        if difference:
            what = f"an environment that has played before gives another episode than a new one: {difference}"
            fix = "set every attribute of an episode anew in reset"
            yield bench.finding("reset_forgets", FAULT, what, fix, at="reset", seed=seed)
            return
    bench.reusable = True


@check("reset_forgets")
def steps_only_in_an_episode(bench: Bench) -> Iterator[Finding]:
    """`step` after the end raises RuntimeError, so that a caller's mistake shows."""
    for seed in bench.seeds(5):
        probe = bench.fresh()
        episode = bench.play(probe, seed)
        if not episode.ended:
            continue
        try:
            probe.step(episode.steps[-1].action)
        except CallFailed as failure:
            if isinstance(failure.error, RuntimeError):
                return
            what = f"step after the end raises {type(failure.error).__name__}"
        else:
            what = "step after the end goes on playing"
        fix = 'raise RuntimeError("the episode is over; call reset first")'
        yield bench.finding("steps_only_in_an_episode", ADVICE, what, fix, at="step", seed=seed)
        return


@check("reset_forgets", "alone_or_beside")
def pickles(bench: Bench) -> Iterator[Finding]:
    """An environment can be pickled in mid-episode and goes on alike, or its class says why not."""
    probe = bench.fresh()
    probe.reset(bench.job.seed, 1)
    try:
        copy = pickle.loads(pickle.dumps(probe.env))
    except Exception as error:
        cls = type(inner(probe.env))
        if any(
            name in vars(base) for base in cls.__mro__[:-1] for name in ("__reduce__", "__reduce_ex__", "__getstate__")
        ):
            return  # it refuses in its own words
        stuck = [name for name, value in vars(inner(probe.env)).items() if not _can_be_pickled(value)]
        what = f"cannot be pickled: {', '.join(stuck) or 'it'} ({type(error).__name__}: {short(str(error), 120)})"
        fix = "keep no lambdas, handles or generators in attributes, or define __getstate__ that says why it cannot be"
        yield bench.finding("pickles", ADVICE, what, fix, at="__init__", seed=bench.job.seed)
        return
    other = bench.fresh()
    other.env = copy
    action = probe.random_action(np.random.default_rng(0))
    if action is not None:
        one, two = (Episode(bench.job.seed, "", [played.step(action)]) for played in (probe, other))
        difference = one.difference(two)
        if difference:
            what = f"a pickled copy goes on differently: {difference}"
            fix = "let the whole state be in attributes that pickle keeps"
            yield bench.finding("pickles", FAULT, what, fix, at="step", seed=bench.job.seed)


def _can_be_pickled(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


@check("returns")
def closes(bench: Bench) -> Iterator[Finding]:
    """`close` works in any state and twice, and leaves no thread, process or open file behind."""
    seed = bench.job.seed
    held = []
    for _ in range(3):
        for state in ("new", "in mid-episode"):
            probe = bench.fresh()
            if state != "new":
                bench.play(probe, seed, most=1)
            for times in ("", " a second time"):
                try:
                    probe.close()
                except CallFailed as failure:
                    what = f"close{times} ({state}) raised {type(failure.error).__name__}: {short(str(failure.error))}"
                    fix = "free what is there, and remember that it is freed"
                    yield bench.finding("closes", FAULT, what, fix, at="close", seed=seed)
                    return
        del probe
        held.append(_resources())
    for name in held[0]:
        if held[0][name] < held[1][name] < held[2][name]:
            what = (
                f"close leaves {name} behind: {', '.join(str(count[name]) for count in held)} after three environments"
            )
            fix = "end and close in close() what the environment has opened"
            yield bench.finding("closes", ADVICE, what, fix, at="close", seed=seed)


def _resources() -> dict[str, int]:
    process = psutil.Process()
    return {
        "threads": threading.active_count(),
        "processes": len(process.children(recursive=True)),
        "open files": process.num_fds() if hasattr(process, "num_fds") else 0,
    }


@check("same_episode")
def render_only_looks(bench: Bench) -> Iterator[Finding]:
    """`render` gives text (and a uint8 picture where the observation is one) and changes nothing."""
    for seed in bench.seeds(5):
        plain = bench.play(bench.probe(), seed)
        looked = bench.play(bench.probe(), seed, choose=_look_and_draw)
        difference = plain.difference(looked)
        if difference and not plain.difference(bench.play(bench.probe(), seed)):
            what = f"an episode differs if render() is called in between: {difference}"
            fix = "let render read the state, never change it or draw from a generator"
            yield bench.finding("render_only_looks", FAULT, what, fix, at="render", seed=seed)
            return
    probe = bench.probe()
    observation = probe.reset(bench.job.seed)
    text = probe.render("text")
    if not isinstance(text, str):
        fix = "return the current observation as text"
        yield bench.finding("render_only_looks", FAULT, f"render('text') is {short(text)}", fix, at="render")
    pictures = probe.env.render_mode == "rgb_array"
    if pictures:
        picture = probe.render("rgb_array")
        if getattr(picture, "dtype", None) != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            shown = f"{type(picture).__name__} of {getattr(picture, 'dtype', '?')}, {getattr(picture, 'shape', '?')}"
            fix = "return a uint8 array of (height, width, 3)"
            yield bench.finding("render_only_looks", FAULT, f"render('rgb_array') is a {shown}", fix, at="render")
    if pictures != (observation == "<image>"):
        what = f"render_mode is {probe.env.render_mode!r}, but the observation starts {short(observation, 30)}"
        fix = "return '<image>' as observation exactly where render_mode is 'rgb_array'"
        yield bench.finding("render_only_looks", FAULT, what, fix, at="reset", seed=bench.job.seed)


def _look_and_draw(probe: Any, rng: np.random.Generator) -> str | None:
    probe.render("text")
    return probe.random_action(rng)
