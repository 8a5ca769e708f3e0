"""Any Gymnasium environment whose actions can be named or are text, by its id.

`env_config` says how a state reads, what the actions are called, and which end is a success; `toy_text.py` holds the
functions that the shipped entries name. Randomness, as in every adapted class: `reset(seed)` decides the start, then
the environment's generator is replaced by the episode's own luck. So a group shares its start, and every member has its
own slips and draws, as far as the environment draws from `np_random` when it steps. What it draws in `reset` (a
shuffled deck, say) belongs to the start and is shared.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ragen.env.errors import EnvConfigError, MissingDependency
from ragen.env.gym_adapter import GymAdapter
from ragen.env.gymnasium.config import GymnasiumConfig

#: A stretch of terminal colour in an `ansi` drawing. It marks a place, so it becomes brackets.
_COLOURED = re.compile(r"\x1b\[[0-9;]*m(.*?)\x1b\[0m", re.DOTALL)


class GymnasiumEnv(GymAdapter):
    config_class = GymnasiumConfig

    def __init__(self, config: GymnasiumConfig):
        super().__init__(_make(config), config)
        self.render_mode = config.render_mode
        low, high = config.reward_range or (-np.inf, np.inf)
        self.reward_range = (min(float(low), 0.0), max(float(high), 0.0))  # an action that does not exist pays 0
        self._read = _reader(config.state)
        self._oracle = _function(config.oracle, "oracle") if config.oracle else None
        self._lookup = _action_values(config, self.inner.action_space)
        self._state: Any = None
        self._mask: Any = None
        self._total = 0.0
        self._over = True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        text, info = super().reset(seed, luck=luck)
        self._mask, self._total, self._over = info.get("action_mask"), 0.0, False
        return text, _plain(info)

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """As `Env.step`. An action that does not exist never reaches the environment and pays 0."""
        if self._over:
            raise RuntimeError(f"the episode of {self.config.id} is over; call reset first")
        if not self._exists(action):
            info = {"action_is_valid": False, "action_is_effective": False, "success": False}
            return self._text, 0.0, False, False, info
        text, reward, terminated, truncated, info = super().step(self._encoded(action))
        self._mask, self._total = info.get("action_mask"), self._total + reward
        self._over = terminated or truncated
        counts = terminated or (truncated and self.config.success_when == "ended")
        compared = reward if self.config.success_reward == "last" else self._total
        info["success"] = counts and compared > self.config.success_above
        info["action_is_effective"] = info["action_is_effective"] or self._over
        return text, reward, terminated, truncated and not terminated, _plain(info)

    def render(self, mode: str = "text") -> Any:
        if mode != "text" and self.render_mode == "text":
            raise ValueError(
                f"{self.config.id} shows no board here; for pictures set env_config.render_mode: rgb_array"
            )
        return super().render(mode)

    def instruction(self) -> str:
        if self.config.instruction is None:
            raise EnvConfigError(
                f"environment {self.config.id!r} lacks its instruction; write env_config.instruction or "
                "env_instruction in envs.yaml: the goal, what the state's text means, the rewards"
            )
        return self.config.instruction

    def oracle_action(self) -> str | None:
        if self._over:
            return None
        if self._oracle is not None:
            return self._oracle(self._state)
        owner = self.inner.unwrapped
        if not hasattr(owner, "P") or not hasattr(owner, "s") or self._lookup is None:
            return None
        best = int(_plan(self.config.id, json.dumps(self.config.kwargs, sort_keys=True))[int(owner.s)])
        return next((name for name, value in self._lookup.items() if value == best), None)

    def random_action(self, rng: np.random.Generator) -> str | None:
        """One of the actions that the environment's `action_mask` allows, where it gives one."""
        if self._lookup is None:
            return None
        names = list(self._lookup)
        if self._mask is not None:
            start = int(self.inner.action_space.start)
            names = [name for name, value in self._lookup.items() if self._mask[value - start]] or names
        return names[int(rng.integers(len(names)))]

    def _exists(self, action: Any) -> bool:
        if self._lookup is not None:
            return any(type(action) is type(value) and action == value for value in self._lookup.values())
        return isinstance(action, str) and self.inner.action_space.contains(action)

    def _encoded(self, action: Any) -> Any:
        """A list of the config as the array that spaces of several numbers take."""
        return np.asarray(action, dtype=self.inner.action_space.dtype) if isinstance(action, list) else action

    def _as_text(self, observation: Any) -> str:
        self._state = observation
        if self.render_mode == "rgb_array":
            return "<image>"
        if self._read is not None:
            return self._read(observation)
        if isinstance(observation, str):
            return observation
        if self.inner.render_mode == "ansi":
            return _COLOURED.sub(r"[\1]", self.inner.render()).rstrip()
        return str(observation)

    def _warn(self, about: str, message: str) -> None:
        """Nothing is guessed: the config says what is a success."""


def _make(config: GymnasiumConfig) -> Any:
    import gymnasium  # takes a while, and naming the tag must not

    mode = "rgb_array" if config.render_mode == "rgb_array" else None
    try:
        if mode is None and config.state in (None, "ansi"):
            spec = gymnasium.spec(config.id)
            entry = spec.entry_point if callable(spec.entry_point) else gymnasium.envs.registration.load_env_creator(
                spec.entry_point
            )  # fmt: skip
            if "ansi" in getattr(entry, "metadata", {}).get("render_modes", ()):
                mode = "ansi"
            elif config.state == "ansi":
                raise EnvConfigError(
                    f"environment {config.id!r} has no ansi drawing; set state to a format or function"
                )
        return gymnasium.make(config.id, render_mode=mode, disable_env_checker=True, **config.kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingDependency(f"environment {config.id!r}: {error}") from error
    except gymnasium.error.Error as error:
        raise EnvConfigError(f"id {config.id!r} is no environment of Gymnasium: {error}") from error


@functools.lru_cache(maxsize=32)
def _plan(env_id: str, kwargs: str) -> np.ndarray:
    from ragen.env.gymnasium.planning import best_actions

    env = _make(GymnasiumConfig(id=env_id, kwargs=json.loads(kwargs)))
    try:
        return best_actions(env.unwrapped.P)
    finally:
        env.close()


def _function(path: str, key: str) -> Callable[[Any], str]:
    module, _, name = path.partition(":")
    try:
        found = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise EnvConfigError(f"{key} {path!r} cannot be loaded, write package.module:function ({error})") from error
    if not callable(found):
        raise EnvConfigError(f"{key} {path!r} is no function")
    return found


def _reader(state: str | None) -> Callable[[Any], str] | None:
    if state in (None, "ansi"):
        return None
    if "{" in state:
        return functools.partial(_format, state)
    if ":" in state:
        return _function(state, "state")
    raise EnvConfigError(f"state is {state!r}; write package.module:function, a format string with {{state}}, or ansi")


def _format(pattern: str, observation: Any) -> str:
    parts = list(observation) if isinstance(observation, (tuple, list, np.ndarray)) and np.ndim(observation) else []
    named = observation if isinstance(observation, Mapping) else {}
    return pattern.format(*parts, **{"state": observation, **named})


def _action_values(config: GymnasiumConfig, space: Any) -> Mapping[str, Any] | None:
    import gymnasium

    if isinstance(config.actions, Mapping):
        return dict(config.actions)
    if isinstance(space, gymnasium.spaces.Discrete):
        count, start = int(space.n), int(space.start)
        names = config.actions or [str(start + index) for index in range(count)]
        if len(names) != count:
            raise EnvConfigError(f"actions has {len(names)} names, but {config.id} has {count} actions; name each")
        return {name: start + index for index, name in enumerate(names)}
    if isinstance(space, gymnasium.spaces.Text) and config.actions is None:
        return None
    raise EnvConfigError(
        f"the actions of {config.id!r} are {space}; give env_config.actions as name → value, the value being what "
        "its step takes"
    )


def _plain(value: Any) -> Any:
    """Arrays as lists, so that infos compare, pickle and print as plain values."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
