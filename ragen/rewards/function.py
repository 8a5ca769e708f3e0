"""The user's reward function: found by path and name, run with a time limit, and its result checked.

    async def my_reward(trajectory: Trajectory, **kwargs) -> float | list[float]

A number is the last turn's reward, a list gives each turn its own. A plain function (no `async`) runs in a thread. The
name may also be a class: `kwargs` go to its constructor, and its instance is called with the trajectory.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ragen.env.errors import nearest
from ragen.llm_agent.trajectory import Trajectory

MODES = ("add", "replace")

#: Plain functions that run at the same time, each in a thread of its own.
THREADS = 16
#: Threads that ran over their limit and still run; no more calls are made beyond so many.
MAX_LOST = 64


class RewardError(RuntimeError):
    """The function raised, took too long or returned no reward: costs its own episode."""


class RewardFunction:
    """A loaded reward function. Use it from one event loop.

    Args:
        path: a Python file (ends with `.py`) or a module's dotted name.
        name: a function in it, or a class (see the module's text).
        kwargs: keyword arguments of the function, or of the class.
        timeout_s: seconds that one call may take; waiting for a free thread does not count.
        mode: `add`: what it returns is added to the environment's rewards. `replace`: it takes their place, format
            penalties included (`Turn.reward` and `Turn.format_penalty` still tell them).
        in_validation: whether validation episodes are rewarded too.

    Raises:
        ValueError: no such file, module or name, it cannot be called so, or a value out of range. The message starts
            with the key of `reward` that is at fault.
    """

    def __init__(
        self,
        path: str,
        name: str = "reward",
        *,
        kwargs: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
        mode: str = "add",
        in_validation: bool = False,
    ):
        if mode not in MODES:
            raise ValueError(f"mode: {mode!r} is neither {' nor '.join(MODES)}")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s: {timeout_s} must be above 0 seconds")
        self.path, self.name, self.timeout_s, self.mode, self.in_validation = path, name, timeout_s, mode, in_validation
        self._function = _load(str(path), str(name), dict(kwargs or {}))
        called = self._function.func if isinstance(self._function, functools.partial) else self._function
        self._is_async = inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(type(called).__call__)
        self._threads = asyncio.Semaphore(THREADS)
        self._lost = 0

    @classmethod
    def from_config(cls, node: Mapping[str, Any]) -> RewardFunction | None:
        """The function of a config's `reward` node; None where it names none. Raises ValueError, see the class."""
        if not node.get("path"):
            return None
        return cls(
            node["path"],
            node["name"],
            kwargs=node["kwargs"],
            timeout_s=node["timeout_s"],
            mode=node["mode"],
            in_validation=node["in_validation"],
        )

    async def apply(self, trajectory: Trajectory) -> Trajectory:
        """The episode with its rewards as the function has them.

        `turn_rewards` change; `metrics` get `custom_reward` and `env_return`, the sums of what the function and the
        environment gave; the turns' texts keep the rewards that the policy was shown.

        Args:
            trajectory: a usable episode of K turns. The function gets a copy: it cannot change what is trained.

        Raises:
            RewardError: the function raised, ran over its limit, or returned something else than a finite number or K
                of them.
        """
        result = await self._call(copy.deepcopy(trajectory))
        given = _per_turn(result, trajectory.num_turns)
        rewards = trajectory.turn_rewards + given if self.mode == "add" else given
        with np.errstate(over="ignore"):  # what overflows is reported
            if not np.isfinite([*rewards.astype(np.float32), np.float32(rewards.sum())]).all():
                raise RewardError(f"returned {_short(result)}: the rewards must be finite in 32-bit floats")
        sums = {"custom_reward": float(given.sum()), "env_return": trajectory.episode_return}
        return dataclasses.replace(trajectory, turn_rewards=rewards, metrics={**trajectory.metrics, **sums})

    async def _call(self, trajectory: Trajectory) -> Any:
        if self._is_async:
            return await self._within_limit(asyncio.ensure_future(_guarded(self._function, trajectory)))
        async with self._threads:
            if self._lost >= MAX_LOST:
                raise RewardError(f"not called: {self._lost} earlier calls still run, each over {self.timeout_s:g} s")
            future = _in_thread(self._function, trajectory)
            try:
                result = await self._within_limit(future)
            finally:
                if future.cancelled():  # the thread goes on: it cannot be stopped
                    self._lost += 1
                    future.thread_ended(lambda: setattr(self, "_lost", self._lost - 1))
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise RewardError("returned an awaitable: declare it with `async def`")
        return result

    async def _within_limit(self, future: asyncio.Future) -> Any:
        try:
            # not wait_for: it would wait on for a call that does not heed its cancellation
            await asyncio.wait({future}, timeout=self.timeout_s)
            late = not future.done()
        finally:
            future.cancel()
        if late:
            raise RewardError(f"no answer within reward.timeout_s={self.timeout_s:g}")
        return future.result()


async def _guarded(function: Callable[..., Any], trajectory: Trajectory) -> Any:
    try:
        return await function(trajectory)
    except (Exception, SystemExit) as error:
        raise RewardError(_raised(error)) from error


class _ThreadFuture(asyncio.Future):
    """The result of a call in a daemon thread, which tells when the thread is over, even after a cancellation."""

    _over = False
    _then: Callable[[], None] | None = None

    def thread_ended(self, then: Callable[[], None]) -> None:
        """Call `then` on the loop once the thread is over, or now."""
        if self._over:
            then()
        else:
            self._then = then

    def end(self, result: Any, error: RewardError | None) -> None:
        self._over = True
        if self._then is not None:
            self._then()
        if not self.done():
            self.set_result(result) if error is None else self.set_exception(error)


def _in_thread(function: Callable[[Trajectory], Any], trajectory: Trajectory) -> _ThreadFuture:
    """Run a call in a daemon thread: unlike an executor's, it does not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    future = _ThreadFuture(loop=loop)

    def run() -> None:
        result, error = None, None
        try:
            result = function(trajectory)
        except (Exception, SystemExit) as raised:
            error = RewardError(_raised(raised))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(future.end, result, error)

    threading.Thread(target=run, name="reward", daemon=True).start()
    return future


# --- results ---------------------------------------------------------------------------------------------------------


def _per_turn(result: Any, turns: int) -> np.ndarray:
    """(K,) float64: what each of the K turns gets. A number goes to the last one."""
    problem = f"returned {_short(result)}; return a finite number, or a list of {turns}, one for each turn"
    if isinstance(result, (str, bytes, Mapping)):
        raise RewardError(problem)
    try:
        values = np.asarray(result, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor that has a gradient
        raise RewardError(problem) from None
    if values.ndim == 0:
        values = np.append(np.zeros(turns - 1), values)
    if values.shape != (turns,) or not np.isfinite(values).all():
        raise RewardError(problem)
    return values


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _raised(error: BaseException) -> str:
    return f"raised {type(error).__name__}: {str(error)[:500]}"


# --- loading ---------------------------------------------------------------------------------------------------------


def _load(path: str, name: str, kwargs: dict[str, Any]) -> Callable[[Trajectory], Any]:
    module = _module(path)
    target = getattr(module, name, None)
    if not callable(target):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
               and getattr(value, "__module__", None) == module.__name__]  # fmt: skip
        raise ValueError(f"name: {path} has no function {name!r}; {nearest(name, own)}")
    try:
        if not inspect.isclass(target):
            inspect.signature(target).bind(None, **kwargs)
            return functools.partial(target, **kwargs)
        inspect.signature(target).bind(**kwargs)
    except TypeError as error:
        takes = "the keyword arguments" if inspect.isclass(target) else "(trajectory, the keyword arguments)"
        raise ValueError(f"kwargs: {name} must take {takes} {sorted(kwargs)}: {error}") from None
    try:
        instance = target(**kwargs)
    except Exception as error:  # the user's code: whatever it refuses is a fault of its arguments
        raise ValueError(f"kwargs: {name} cannot be built: {type(error).__name__}: {error}") from error
    try:
        inspect.signature(instance).bind(None)
    except TypeError as error:
        raise ValueError(f"name: an instance of {name} must be callable with one trajectory: {error}") from None
    return instance


def _module(path: str) -> ModuleType:
    if not path.endswith(".py"):
        try:
            return importlib.import_module(path)
        except Exception as error:
            raise ValueError(f"path: {path} cannot be imported: {type(error).__name__}: {error}") from error
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise ValueError(f"path: {file} is no file; give a Python file, or a module's name without .py")
    name = f"ragen_reward_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look it up there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ValueError(f"path: {file} cannot be loaded: {type(error).__name__}: {error}") from error
    return module
