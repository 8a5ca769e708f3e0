"""Settings of the Gymnasium adapter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ragen.env.config_checks import one_of


@dataclass
class GymnasiumConfig:
    id: str = ""
    """The registered environment, such as `Taxi-v4`; `my_package:MyEnv-v0` imports `my_package` first."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `gymnasium.make`, `max_episode_steps` included."""
    state: str | None = None
    """How a state reads: `package.module:function` (observation → text); a format string over it, with `{state}` for
    the whole, `{0}`, `{1}` … for the parts of a tuple or array and `{name}` for those of a dict; or `ansi`, the
    environment's own drawing. null: text as it is, else `ansi` where the environment has it, else `str`."""
    actions: list[str] | dict[str, Any] | None = None
    """Names of a discrete environment's actions in their order, or name → the value that `step` takes. null: the
    numbers of a discrete space; in a text space, any text that it contains."""
    instruction: str | None = None
    """The task as the prompt tells it: goal, legend, rewards."""
    render_mode: str = "text"
    """`text`, or `rgb_array`: the observation is the environment's picture."""
    reward_range: list[float] | None = None
    """Least and greatest reward of one step. null: unbounded."""
    success_when: str = "terminated"
    """Which end can be a success: `terminated`, where the task ends by itself, or `ended`, its time limit too."""
    success_reward: str = "last"
    """What is compared then: the `last` reward, or the `total` of the episode."""
    success_above: float = 0.0
    """It is a success if that is greater than this."""
    oracle: str | None = None
    """`package.module:function` (observation → action name). null: planned by value iteration where the environment
    publishes its transitions (`P`, as the toy-text ones do), else there is none."""

    def __post_init__(self):
        if not isinstance(self.id, str) or not self.id:
            raise ValueError(f"id is {self.id!r}; name a Gymnasium environment, such as 'Taxi-v4'")
        if "render_mode" in self.kwargs:
            raise ValueError("kwargs has render_mode; set env_config.render_mode to text or rgb_array instead")
        one_of(self, render_mode=("text", "rgb_array"), success_when=("terminated", "ended"))
        one_of(self, success_reward=("last", "total"))
        if self.actions is not None:
            names = list(self.actions)
            if not names or any(not isinstance(name, str) or not name.strip() for name in names):
                raise ValueError(
                    f"actions is {self.actions!r}; give names (quote Yes, No, On, Off and numbers in YAML)"
                )
            if len({name.casefold() for name in names}) < len(names):
                raise ValueError(f"actions {names} must differ in more than upper and lower case")
        if self.reward_range is not None:
            sound = len(self.reward_range) == 2 and self.reward_range[0] <= self.reward_range[1]
            if not sound:
                raise ValueError(f"reward_range is {self.reward_range!r}; give [least, greatest]")
        for key in ("state", "oracle"):
            value = getattr(self, key)
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"{key} is {value!r}; give text, or null")
