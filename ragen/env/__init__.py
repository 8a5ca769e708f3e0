"""Environments: the contract (`base.py`), how one is found and built (`registry.py`), and one folder for each."""

from ragen.env.base import Env
from ragen.env.errors import EnvConfigError, MissingDependency
from ragen.env.registry import EnvSpec, available_env_types, load_env_class, load_specs, make_env

__all__ = [
    "Env",
    "EnvConfigError",
    "EnvSpec",
    "MissingDependency",
    "available_env_types",
    "load_env_class",
    "load_specs",
    "make_env",
]
