"""Settings of the reasoning_gym adapter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ragen.env.config_checks import at_least


@dataclass
class ReasoningGymConfig:
    task: str = "countdown"
    """Name of the task in the package's registry, such as `countdown` or `zebra_puzzles`; `composite` mixes several."""
    config: dict[str, Any] = field(default_factory=dict)
    """The task's own settings. For `composite`: `datasets`, a list of {name, weight, config}."""
    instruction: str | None = None
    """Replaces the sentence about the answer and its score; the question itself is the observation."""
    success_score: float = 1.0
    """Least score of the task's verifier that counts as solved."""
    max_answer_chars: int = 10_000
    """Longer answers are invalid and not verified."""
    score_limit_s: float = 5.0
    """Seconds that the verifier may take; beyond them the answer scores 0. Not enforced outside a main thread."""

    def __post_init__(self):
        at_least(self, max_answer_chars=1)
        if not isinstance(self.task, str) or not self.task:
            raise ValueError(f"task is {self.task!r}; name a task of reasoning_gym, such as 'countdown'")
        for key in ("seed", "size"):
            if key in self.config:
                raise ValueError(f"config has {key!r}; leave it out: every group's seed makes its own question")
        if not 0 < self.success_score <= 1:
            raise ValueError(f"success_score is {self.success_score!r}; give a score above 0, up to 1")
        if not self.score_limit_s > 0:
            raise ValueError(f"score_limit_s is {self.score_limit_s!r}; give a number of seconds above 0")
