"""What checks have in hand: a `Bench` for one environment type, `Probe`s (environments under test), played `Episode`s.

All of it lives in the worker process that the checker may kill. Before every call to the environment a probe writes
into the `Journal`, a page that the checker reads from outside, what it is about to do: so a call that hangs or ends
the process can be named. The checker's own side is `host.py`; the checks are in `contract.py`,
`state.py` and `play.py`.
"""

from __future__ import annotations

import inspect
import mmap
import os
import struct
import sysconfig
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ragen.env.base import Env
from ragen.env.errors import EnvConfigError, MissingDependency
from ragen.env.gym_adapter import GymAdapter
from ragen.env.isolation_server import look_up
from ragen.env.registry import EnvSpec, load_specs

FAULT, ADVICE = "fault", "advice"
INFO_KEYS = ("action_is_valid", "action_is_effective", "success")
#: Seconds that one check may spend on playing; it then goes by what it has seen.
BUDGET_S = 5.0
#: Seconds in which an environment must import and build.
BUILD_LIMIT_S = 60.0
#: Most actions of one episode, where a check needs no whole one.
SHORT = 40
#: Random actions of episode n of seed s are drawn by a generator of [s, _ACTIONS].
_ACTIONS = 7
#: Between the parts of a journal's entry: what is called, its seed, where it is written.
JOURNAL_SEP = "\0"
#: In `Probe.step_value`: a value that no environment knows.
NO_ACTION = "no such action"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (`fault`) or could be better (`advice`)."""

    check: str
    severity: str
    what: str
    where: str
    fix: str
    seed: int | None = None
    key: str = ""
    """Findings of one key are one finding; empty: no other is like it."""
    during: str = ""
    """The check that ran."""


@dataclass(frozen=True)
class Limits:
    """What a config says about contexts, as far as an environment can break it."""

    max_model_len: int = 3600
    response_length: int = 400
    max_turn: int = 5
    turns_seen: int = -1
    """Turns that a context has to hold; -1: all."""
    action_sep: str = "||"


@dataclass(frozen=True)
class Job:
    """What to check: one entry of `custom_envs`, and how much to play."""

    tag: str
    entry: Mapping[str, Any]
    seed: int = 10_000
    """The first seed that is played."""
    episodes: int = 20
    limits: Limits = field(default_factory=Limits)
    tokenizer: str | None = None
    """A `tokenizer.json`; None: tokens are estimated."""
    journal: str = ""


class Step(NamedTuple):
    """One action and what came of it."""

    action: Any
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]

    @property
    def seen(self) -> tuple[Any, ...]:
        """What must come again under the same seed. NaN equals NaN here."""
        flags = tuple(bool(self.info.get(key)) for key in INFO_KEYS)
        return self.action, str(self.observation), repr(float(self.reward)), self.terminated, self.truncated, flags


@dataclass
class Episode:
    """A start and the steps played from it."""

    seed: int
    start: str
    steps: list[Step] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return bool(self.steps) and (self.steps[-1].terminated or self.steps[-1].truncated)

    @property
    def total(self) -> float:
        return float(sum(step.reward for step in self.steps))

    @property
    def success(self) -> bool:
        return any(bool(step.info.get("success")) for step in self.steps)

    def difference(self, other: Episode) -> str | None:
        """Where two episodes part, in words; None where they are alike."""
        if self.start != other.start:
            return f"it starts as {short(self.start)}, then as {short(other.start)}"
        for number, (one, two) in enumerate(zip(self.steps, other.steps, strict=False), start=1):
            if one.seen == two.seen:
                continue
            names = ("the action drawn", "the observation", "the reward", "terminated", "truncated", "info")
            name, a, b = next((n, a, b) for n, a, b in zip(names, one.seen, two.seen, strict=True) if a != b)
            return f"in step {number} ({short(one.action)}) {name} is {short(a)}, then {short(b)}"
        if len(self.steps) != len(other.steps):
            return f"it takes {len(self.steps)} steps, then {len(other.steps)}"
        return None


class CallFailed(Exception):
    """A call to the environment raised, or did not return what the contract says."""

    def __init__(self, call: str, seed: int | None, error: BaseException):
        super().__init__(call, seed, error)
        self.call, self.seed, self.error = call, seed, error


class Journal:
    """One page of a file, shared with the checker: the call that runs now, since when, and how long it may take.

    Byte 0 is odd while an entry is being written, so that half an entry is never read.
    """

    SIZE = 4096
    _HEAD = struct.Struct("<ddI")
    _BODY = 1 + _HEAD.size

    def __init__(self, path: str):
        with open(path, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), self.SIZE)

    def begin(self, text: str, limit_s: float) -> None:
        self._write(time.monotonic(), limit_s, text.encode("utf-8", "replace")[: self.SIZE - self._BODY])

    def end(self) -> None:
        self._write(0.0, 0.0, b"")

    def _write(self, started: float, limit_s: float, body: bytes) -> None:
        version = (self._page[0] & 0xFE) + 2 & 0xFF
        self._page[0] = version | 1
        self._HEAD.pack_into(self._page, 1, started, limit_s, len(body))
        self._page[self._BODY : self._BODY + len(body)] = body
        self._page[0] = version

    def running(self) -> tuple[str, float, float] | None:
        """(call, seconds so far, seconds allowed) of the call that runs, or that was running when the process died."""
        page = self._page[:]
        if page[0] & 1 or self._page[0] != page[0]:
            return None  # it has just begun or ended
        started, limit_s, length = self._HEAD.unpack_from(page, 1)
        if not started:
            return None
        text = page[self._BODY : self._BODY + length].decode("utf-8", "replace")
        return text, time.monotonic() - started, limit_s


class Probe:
    """One environment under test: its calls are written down, timed, and raise `CallFailed`."""

    def __init__(self, bench: Bench):
        self._bench = bench
        self._seed: int | None = None
        self._played: list[str] = []
        self.env: Env = self._call("build", lambda: bench.spec.make(), limit_s=BUILD_LIMIT_S)

    def reset(self, seed: int, luck: int | None = None) -> str:
        """Returns the observation."""
        self._seed, self._played = seed, []
        observation, _ = self._call("reset", self.env.reset, seed, luck=luck)
        return observation

    def step(self, name: str) -> Step:
        """Take the action of that name, as the framework does, or that text."""
        lookup = self.lookup()
        return self.step_value(name if lookup is None else look_up(name, lookup), name)

    def step_value(self, value: Any, name: str | None = None) -> Step:
        """Take an action by the value that `Env.step` gets."""
        name = repr(value) if name is None else name
        self._played.append(name[:40])
        observation, reward, terminated, truncated, info = self._call("step", self.env.step, value)
        return Step(name, observation, reward, bool(terminated), bool(truncated), info)

    def raw_step(self, name: str) -> Any:
        """Whatever `step` returns, unread."""
        lookup = self.lookup()
        self._played.append(name[:40])
        return self._call("step", self.env.step, name if lookup is None else look_up(name, lookup))

    def raw_reset(self, seed: int) -> Any:
        """Whatever `reset` returns, unread."""
        self._seed, self._played = seed, []
        return self._call("reset", self.env.reset, seed, luck=None)

    def lookup(self) -> Mapping[str, Any] | None:
        return self._call("action_lookup", self.env.action_lookup)

    def instruction(self) -> str:
        return self._call("instruction", self.env.instruction)

    def render(self, mode: str = "text") -> Any:
        return self._call("render", self.env.render, mode)

    def random_action(self, rng: np.random.Generator) -> str | None:
        return self._call("random_action", self.env.random_action, rng)

    def oracle_action(self) -> str | None:
        return self._call("oracle_action", self.env.oracle_action)

    def close(self) -> None:
        self._call("close", self.env.close)

    def view(self) -> str:
        """What the start shows, pictures included, as comparable text."""
        if self.env.render_mode != "rgb_array":
            return ""
        return str(zlib.crc32(np.asarray(self.render("rgb_array")).tobytes()))

    def _call(self, call: str, method: Callable[..., Any], *args: Any, limit_s: float | None = None, **named: Any):
        played = f" after {', '.join(self._played[-6:])}" if call == "step" and len(self._played) > 1 else ""
        shown = f"({short(self._played[-1], 40)})" if call == "step" and self._played else ""
        story = f"{call}{shown}{played}"
        bench = self._bench
        seed = "" if self._seed is None else str(self._seed)
        where = bench.where(call) if call != "build" else f"custom_envs.{bench.job.tag}"
        bench.journal.begin(JOURNAL_SEP.join((story, seed, where)), limit_s or bench.call_limit_s)
        started = time.perf_counter()
        try:
            result = method(*args, **named)
        except MissingDependency:
            raise
        except (Exception, SystemExit) as error:
            raise CallFailed(story, self._seed, error) from error
        finally:
            bench.timings.setdefault(call, []).append(time.perf_counter() - started)
            bench.journal.end()
        return result


class Bench:
    """Runs checks on one environment type, by name, in the process where it lives.

    `step` and `action_lookup` are what a worker process (`ragen.env.isolation`) calls on an environment; the action is
    the name of a check.
    """

    def __init__(self, job: Job):
        self.job = job
        self.journal = Journal(job.journal)
        self.timings: dict[str, list[float]] = {}
        self.measured: dict[str, float] = {}
        #: A check found that `reset` leaves nothing behind: environments may be used again, which saves building them.
        self.reusable = False
        self._spec: EnvSpec | None = None
        self._where: dict[str, str] = {}
        self._kept: Probe | None = None
        self._until = 0.0

    # --- what the worker process calls ----------------------------------------------------------------------------

    def action_lookup(self) -> None:
        return None

    def step(self, order: tuple[str, bool]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """`order`: a check's name, and whether environments may be used again. Returns the `Report` first."""
        from ragen.env.checker.registry import all_checks
        from ragen.env.checker.state import digest

        name, self.reusable = order
        self._until = time.monotonic() + BUDGET_S
        report = Report()
        try:
            if name == "digest":
                report.digest = digest(self)
            else:
                report.findings = list(all_checks()[name].run(self))
        except MissingDependency as error:
            report.missing = str(error)
        except CallFailed as failure:
            report.findings = [self.raised(name, failure)]
        report.reusable, report.measured = self.reusable, self.measured
        return report, 0.0, False, False, {}

    def close(self) -> None:
        if self._kept is not None:
            self._kept.env.close()

    # --- what checks call --------------------------------------------------------------------------------------------

    @property
    def spec(self) -> EnvSpec:
        """The entry, checked. Its class is imported here, under the journal's eye."""
        if self._spec is None:
            self._spec = load_specs({self.job.tag: dict(self.job.entry)})[self.job.tag]
        return self._spec

    @property
    def call_limit_s(self) -> float:
        return self.spec.step_timeout_s if self._spec is not None else BUILD_LIMIT_S

    def fresh(self) -> Probe:
        """A newly built environment."""
        return Probe(self)

    def probe(self) -> Probe:
        """An environment that may have played before, if that is known to leave no trace."""
        if not self.reusable:
            return self.fresh()
        if self._kept is None:
            self._kept = self.fresh()
        return self._kept

    def discard(self) -> None:
        """Build anew next time: a call of the environment in use has failed."""
        self._kept = None

    def seeds(self, most: int | None = None) -> Iterator[int]:
        """The seeds to play, at least one, for as long as the check's time lasts."""
        for seed in range(self.job.seed, self.job.seed + min(most or self.job.episodes, self.job.episodes)):
            if seed > self.job.seed and time.monotonic() > self._until:
                return
            yield seed

    def play(
        self,
        probe: Probe,
        seed: int,
        luck: int | None = None,
        *,
        choose: Callable[[Probe, np.random.Generator], str | None] | None = None,
        most: int = SHORT,
    ) -> Episode:
        """Reset and play by `choose` (random actions unless given) until the end, `most` actions, or no action."""
        choose = choose or Probe.random_action
        episode = Episode(seed, probe.reset(seed, luck))
        rng = np.random.default_rng([seed, _ACTIONS])
        for _ in range(min(most, self.spec.max_actions_per_traj)):
            action = choose(probe, rng)
            if action is None:
                break
            episode.steps.append(probe.step(action))
            if episode.ended:
                break
        return episode

    def finding(
        self, check: str, severity: str, what: str, fix: str, *, at: str, seed: int | None = None, key: str = ""
    ):
        """A `Finding` at the method `at` of the environment's class."""
        return Finding(check, severity, what, self.where(at), fix, seed, key)

    def raised(self, check: str, failure: CallFailed) -> Finding:
        """The finding for a call that raised during `check`."""
        call, error = failure.call, failure.error
        frames = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in frames if _written_here(frame.filename)] or frames
        where = f"{relative(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}"
        method = call.partition("(")[0]
        fix = f"{method} must not raise here; mend the line named"
        if isinstance(error, EnvConfigError):
            where, fix = f"custom_envs.{self.job.tag}", "correct the entry, or the environment that refuses it"
        elif method == "step":
            fix = "an action that is not possible is an invalid one: say so in info instead of raising"
        kind, message = type(error).__name__, " ".join(str(error).split())
        return Finding(
            "raises", FAULT, f"{call} raised {kind}: {message[:200]}", where, fix, failure.seed,
            key=f"raises {where}",
        )  # fmt: skip

    @property
    def env_class(self) -> type:
        """The class that the user wrote."""
        from ragen.env.registry import load_env_class

        return load_env_class(self.spec.env_type)

    def where(self, method: str) -> str:
        """`file.py:line Class.method` of a method of the environment under test."""
        if method not in self._where:
            self._where[method] = _place(self.env_class, method)
        return self._where[method]


def _place(cls: type, method: str) -> str:
    whole = f"{cls.__module__}.{cls.__name__}"
    target = inspect.unwrap(getattr(cls, method, cls))
    try:
        if not inspect.isfunction(target) or target.__module__ == Env.__module__:  # inherited, or a plain attribute
            return f"{relative(inspect.getsourcefile(cls))}:{inspect.getsourcelines(cls)[1]} {cls.__name__}"
        file, line = inspect.getsourcefile(target), inspect.getsourcelines(target)[1]
    except (TypeError, OSError):
        return f"{whole}.{method}"
    return f"{relative(file)}:{line} {cls.__name__}.{method}"


@dataclass
class Report:
    """What one check sends back."""

    findings: list[Finding] = field(default_factory=list)
    missing: str = ""
    """A package that is not installed, with the line that installs it."""
    reusable: bool = False
    digest: list[Episode] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)


def inner(env: Env) -> Any:
    """The user's own object: what an adapter wraps, else the environment itself."""
    wrapped = env.inner if isinstance(env, GymAdapter) else env
    return getattr(wrapped, "unwrapped", wrapped)


def short(value: Any, most: int = 60) -> str:
    """A value on one line, cut where it is long."""
    text = repr(value)
    return f"{text[:most]}…" if len(text) > most else text


def relative(path: str | None) -> str:
    """A path as seen from here, where it lies below."""
    if path is None:
        return "?"
    shown = os.path.relpath(path)
    return path if shown.startswith("..") else shown


def _written_here(path: str) -> bool:
    """Whether a line of that file can be at fault: no library's, and not the checker's own."""
    libraries = sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")
    return Path(path).parent != Path(__file__).parent and not path.startswith(libraries)
