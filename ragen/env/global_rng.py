"""For packages that draw from Python's and NumPy's global generators: their state swapped in and out around each call.

What such a package draws is then a function of the seed given here, and nobody else's global draws are disturbed. The
swap is guarded by a lock, since the generators are the process's: calls of several threads run one after another.
"""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np

_lock = threading.RLock()


class GlobalRng:
    """`with rng:` makes the global generators continue where this one left off. Picklable."""

    def __init__(self, seed: int):
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Start anew; also inside a `with`."""
        self._states = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()

    def __enter__(self) -> GlobalRng:
        _lock.acquire()
        self._others = _swap(self._states)
        return self

    def __exit__(self, *_: Any) -> None:
        self._states = _swap(self._others)
        _lock.release()


def _swap(states: tuple[Any, Any]) -> tuple[Any, Any]:
    before = random.getstate(), np.random.get_state()
    random.setstate(states[0])
    np.random.set_state(states[1])
    return before
