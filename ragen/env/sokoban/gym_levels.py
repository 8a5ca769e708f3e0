"""Rooms from the original generator of the package gym-sokoban, without its global random state.

That generator draws from the modules `random` and `numpy.random` and keeps its search in module variables. Each call
therefore runs in a private copy of its module, whose two generators are local ones: equal to the original seeded with
`random.seed(seed)` and `numpy.random.seed(seed)`, and touching nothing outside.
"""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ragen.env.errors import MissingDependency


def package_folder() -> Path:
    """The folder of the installed `gym_sokoban` package, found without importing it (it would import gym).

    Raises:
        MissingDependency: the package is not installed.
    """
    spec = importlib.util.find_spec("gym_sokoban")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency("gym-sokoban is not installed; install it: pip install gym-sokoban")
    return Path(spec.submodule_search_locations[0])


def generate(
    seed: int, dim: tuple[int, int], num_boxes: int, search_depth: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """One room as (fixed, state), int arrays of shape `dim` in gym-sokoban's numbering; None where it found no room."""
    module = private_module(seed, search_depth)
    try:
        fixed, state, _ = module.generate_room(dim=dim, num_steps=int(1.7 * sum(dim)), num_boxes=num_boxes)
    except (RuntimeError, RuntimeWarning):
        return None  # too little floor, or no position with all boxes off their targets
    return fixed.astype(int), state.astype(int)


def private_module(seed: int, search_depth: int) -> ModuleType:
    """A new copy of gym-sokoban's module of rooms that draws from generators of its own, started from `seed`."""
    spec = importlib.util.spec_from_file_location("_gym_sokoban_rooms", package_folder() / "envs" / "room_utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.random = random.Random(seed)
    module.np = _NumpyWith(np.random.RandomState(seed))
    search = module.depth_first_search

    def search_to_depth(*args: Any, ttl: int, **kwargs: Any) -> None:
        # Called once, by name `ttl`; the recursion then goes straight to the original.
        module.depth_first_search = search
        search(*args, ttl=min(search_depth, 300), **kwargs)
        module.depth_first_search = search_to_depth

    module.depth_first_search = search_to_depth
    return module


class _NumpyWith(SimpleNamespace):
    """numpy, with `random` replaced by one generator."""

    def __init__(self, generator: np.random.RandomState):
        super().__init__(random=generator)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)
