"""The entries of config/envs.yaml, for tests that hold for every environment."""

from pathlib import Path

import yaml

from ragen.env.registry import EnvSpec, load_specs

ENVS_YAML = Path(__file__).parents[2] / "config" / "envs.yaml"


def all_specs() -> dict[str, EnvSpec]:
    return load_specs(yaml.safe_load(ENVS_YAML.read_text(encoding="utf-8"))["custom_envs"])


def value_of(env, action):
    """What `step` takes for an action given as text."""
    lookup = env.action_lookup()
    return action if lookup is None else lookup[action]


def play(env, seed, luck=None, actions=20):
    """Random valid actions, the same for a given seed. Returns everything that was seen, as comparable values."""
    import numpy as np

    rng = np.random.default_rng(seed)
    seen = [env.reset(seed, luck=luck)]
    for _ in range(actions):
        action = env.random_action(rng)
        if action is None:
            break
        seen.append(env.step(value_of(env, action)))
        if seen[-1][2] or seen[-1][3]:
            break
    return seen
