"""Makes a Gymnasium-like object (`reset(seed)`, `step(action)`) an `Env`: what `make_env` does with users' own classes.

What the object lacks is filled in, and said once where it is a guess:

* `step` may return Gym's older four values; its `done` then means `terminated` unless `info["TimeLimit.truncated"]`.
* An observation that is no text becomes what `render()` says where that is text, else `str(observation)`.
* `action_lookup` may be a method or a mapping, else `ACTION_LOOKUP` or the config's `action_lookup`, names → values or
  values → names; else the numbers of a `Discrete` action space; else any text is an action.
* `instruction` may be a method or text; else `env_instruction` of envs.yaml must be given.
* `info` lacks `action_is_valid`: True. `action_is_effective`: whether the observation changed. `success`: whether the
  episode terminated with a positive reward.
* Own luck: `reset` may accept `luck`. Otherwise an object with Gymnasium's `np_random` draws its start from the seed,
  as usual, and everything after `reset` from the luck stream. One with neither gives a whole group the same luck.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ragen.env.base import Env
from ragen.env.errors import EnvConfigError

logger = logging.getLogger(__name__)
_warned: set[tuple[type, str]] = set()


class GymAdapter(Env):
    """`inner` is the user's object, `config` the config that it was built with, or None."""

    def __init__(self, inner: Any, config: Any = None):
        self.inner, self.config = inner, config
        self.config_class = type(config)
        self.reward_range = getattr(inner, "reward_range", Env.reward_range)
        wanted = getattr(inner, "render_mode", None) or getattr(config, "render_mode", None)
        self.render_mode = "rgb_array" if wanted == "rgb_array" else "text"
        self._lookup = _lookup(inner, config)
        self._text = ""
        self._closed = False

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        self.seed_streams(seed, luck)
        parameters = _parameters(self.inner.reset)
        if "luck" in parameters:
            result = self.inner.reset(seed=seed, luck=luck)
        else:
            result = self.inner.reset(seed=seed) if "seed" in parameters else self.inner.reset(seed)
            owner = getattr(self.inner, "unwrapped", self.inner)
            if isinstance(getattr(owner, "np_random", None), np.random.Generator):
                owner.np_random = self.luck_rng
        with_info = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        observation, info = result if with_info else (result, {})
        self._text = self._as_text(observation)
        return self._text, dict(info)

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        result = self.inner.step(action)
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
        elif len(result) == 4:
            self._warn("step", "step returns Gym's older four values; read as (observation, reward, done, info)")
            observation, reward, done, info = result
            truncated = bool(done) and bool(info.get("TimeLimit.truncated", False))
            terminated = bool(done) and not truncated
        else:
            raise ValueError(
                f"{type(self.inner).__name__}.step returned {len(result)} values; "
                "return observation, reward, terminated, truncated, info"
            )
        before, self._text = self._text, self._as_text(observation)
        reward, terminated, truncated = float(reward), bool(terminated), bool(truncated)
        if "success" not in info:
            self._warn("success", "info lacks 'success'; counted as one: the episode terminates with a positive reward")
        filled = {
            "action_is_valid": True,
            "action_is_effective": self._text != before,
            "success": terminated and reward > 0,
            **info,
        }
        for key in ("action_is_valid", "action_is_effective", "success"):
            filled[key] = bool(filled[key])
        return self._text, reward, terminated, truncated, filled

    def render(self, mode: str = "text") -> Any:
        if mode == "text":
            return self._text
        if "mode" in _parameters(self.inner.render):
            return np.asarray(self.inner.render(mode=mode))
        picture = np.asarray(self.inner.render())
        if picture.ndim != 3:
            raise ValueError(
                f"{type(self.inner).__name__}.render() gave no (height, width, 3) picture; build it with "
                f"env_config: {{render_mode: {mode}}}"
            )
        return picture

    def close(self) -> None:
        if not self._closed and hasattr(self.inner, "close"):
            self.inner.close()
        self._closed = True

    def instruction(self) -> str:
        own = getattr(self.inner, "instruction", None) or getattr(self.config, "instruction", None)
        text = own() if callable(own) else own
        if not isinstance(text, str):
            raise EnvConfigError(
                f"{type(self.inner).__name__} has no instruction(); write one, or set env_instruction in envs.yaml"
            )
        return text

    def action_lookup(self) -> Mapping[str, Any] | None:
        method = getattr(self.inner, "action_lookup", None)
        return _names_to_values(method()) if callable(method) else self._lookup

    def oracle_action(self) -> str | None:
        oracle = getattr(self.inner, "oracle_action", None)
        return oracle() if callable(oracle) else None

    def random_action(self, rng: np.random.Generator) -> str | None:
        own = getattr(self.inner, "random_action", None)
        return own(rng) if callable(own) else super().random_action(rng)

    def tools(self) -> list[dict[str, Any]] | None:
        own = getattr(self.inner, "tools", None)
        return own() if callable(own) else None

    def _as_text(self, observation: Any) -> str:
        if self.render_mode == "rgb_array":
            return "<image>"
        if isinstance(observation, str):
            return observation
        # Gymnasium's own environments complain when they are asked to render without a mode.
        if hasattr(self.inner, "render") and getattr(self.inner, "render_mode", "text") is not None:
            rendered = self.inner.render()
            if isinstance(rendered, str):
                return rendered
        return str(observation)

    def _warn(self, about: str, message: str) -> None:
        """Once for each class and matter in a process."""
        if (type(self.inner), about) not in _warned:
            _warned.add((type(self.inner), about))
            logger.warning("%s: %s", type(self.inner).__name__, message)


def _lookup(inner: Any, config: Any) -> Mapping[str, Any] | None:
    for given in (
        getattr(inner, "action_lookup", None),
        getattr(inner, "ACTION_LOOKUP", None),
        getattr(config, "action_lookup", None),
    ):
        if given is not None and not callable(given):
            return _names_to_values(given)
    space = getattr(inner, "action_space", None)
    if hasattr(space, "n"):
        first = int(getattr(space, "start", 0))
        return {str(number): number for number in range(first, first + int(space.n))}
    return None


def _names_to_values(lookup: Mapping[Any, Any] | None) -> Mapping[str, Any] | None:
    """Names → values, from either direction: the keys are the names unless only the values are text."""
    if lookup is None:
        return None
    if all(isinstance(value, str) for value in lookup.values()) and not all(isinstance(key, str) for key in lookup):
        return {name: value for value, name in lookup.items()}
    return {str(name): value for name, value in lookup.items()}


def _parameters(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a built-in function shows none
        return set()
