"""The tasks of the package reasoning_gym, by name: one question, one answer as text, scored by the task's own verifier.

The question is item `seed` of the task's endless series, so members of a group get the same one; there is no luck. The
package is an extra (`reasoning-gym`), and its import takes seconds: it happens when an environment is built.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from ragen.env.base import Env
from ragen.env.errors import EnvConfigError, nearest
from ragen.env.global_rng import GlobalRng
from ragen.env.reasoning_gym.answers import may_be_evaluated
from ragen.env.reasoning_gym.config import ReasoningGymConfig

logger = logging.getLogger(__name__)

#: Tasks of the pinned release whose questions or answers depend on the order of sets of text, hence on PYTHONHASHSEED.
HASH_DEPENDENT = frozenset({"isomorphic_strings", "polynomial_multiplication", "puzzle24", "ransom_note", "sudoku"})


class ReasoningGym(Env):
    config_class = ReasoningGymConfig
    reward_range = (0.0, 1.0)

    def __init__(self, config: ReasoningGymConfig | None = None):
        super().__init__(config)
        self._key = (self.config.task, json.dumps(self.config.config, sort_keys=True))
        if self.config.task in HASH_DEPENDENT and os.environ.get("PYTHONHASHSEED", "random") == "random":
            _warn_of_hashes(self.config.task)
        _dataset(*self._key)  # a fault in the config shows now
        self._entry: dict[str, Any] = {}
        self._text = ""
        self._over = True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        self.seed_streams(seed, luck)
        self._entry = _entry(*self._key, seed)
        self._text, self._over = self._entry["question"], False
        return self._text, {"task": self._source}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score the answer, which ends the episode. An empty, over-long or non-text one is invalid and ends nothing."""
        if self._over:
            raise RuntimeError(f"the question of {self.config.task} is answered; call reset first")
        valid = isinstance(action, str) and bool(action.strip()) and len(action) <= self.config.max_answer_chars
        if not valid:
            info = {"action_is_valid": False, "action_is_effective": False, "success": False}
            return self._text, 0.0, False, False, info
        score = self._score(action)
        self._over, self._text = True, f"Score: {score:g}"
        success = score >= self.config.success_score
        info = {"action_is_valid": True, "action_is_effective": True, "success": success}
        return self._text, score, True, False, info

    def render(self, mode: str = "text") -> str:
        if mode != "text":
            raise ValueError(f"reasoning_gym has no board and cannot render {mode!r}; use 'text'")
        return self._text

    def instruction(self) -> str:
        if self.config.instruction is not None:
            return self.config.instruction
        return (
            "Answer the question. Your answer is checked as it stands: give nothing but the answer, in the form that "
            "the question asks for.\nReward: the score of your answer, from 0 to 1 (right)."
        )

    def oracle_action(self) -> str | None:
        """The answer that comes with the question; a few tasks have a verifier only."""
        return None if self._over else self._entry["answer"]

    def random_action(self, rng: np.random.Generator) -> str | None:
        """The answer to another question of the task, hence of the right form and mostly wrong."""
        return None if self._over else _entry(*self._key, int(rng.integers(2**31)))["answer"]

    @property
    def _source(self) -> str:
        return self._entry.get("metadata", {}).get("source_dataset", self.config.task)

    def _score(self, answer: str) -> float:
        if not may_be_evaluated(self._source, answer):
            answer = ""  # scored as what the verifier cannot read
        try:
            with GlobalRng(0), _time_limit(self.config.score_limit_s):
                score = float(_dataset(*self._key).score_answer(answer, self._entry))
        except Exception:  # verifiers do not expect every text, and an answer that breaks one is wrong
            return 0.0
        return min(max(score, 0.0), 1.0) if score == score else 0.0


@functools.cache
def _warn_of_hashes(task: str) -> None:
    logger.warning("reasoning_gym task %s differs from run to run unless PYTHONHASHSEED is set, e.g. to 0", task)


@functools.lru_cache(maxsize=64)
def _dataset(task: str, config: str) -> Any:
    """The task's series of questions. Some take seconds to build, so a process builds each once."""
    return _create(task, config, 0)


@functools.lru_cache(maxsize=1024)
def _entry(task: str, config: str, seed: int) -> dict[str, Any]:
    """Question `seed` of the series, with its answer. Read-only."""
    with GlobalRng(seed):  # a few generators draw from the global ones
        try:
            return _dataset(task, config)[seed]
        except IndexError:  # the few tasks that make their questions beforehand: a series of its own, one long
            return _create(task, config, seed)[0]


def _create(task: str, config: str, seed: int) -> Any:
    import reasoning_gym
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise EnvConfigError(f"task {task!r} is no task of reasoning_gym: {nearest(task, DATASETS)}")
    values = json.loads(config)
    try:
        if task == "composite":
            parts = values.get("datasets") or []
            values["datasets"] = [DatasetSpec(**{"weight": 1.0, "config": {}, **part}) for part in parts]
        with GlobalRng(seed):
            return reasoning_gym.create_dataset(task, seed=seed, size=1, **values)
    except (TypeError, ValueError, AssertionError) as error:
        raise EnvConfigError(f"config of the reasoning_gym task {task!r} cannot be used: {error}") from error


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError after so long; only the main thread of a process can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, interrupt)
    others = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *others)
