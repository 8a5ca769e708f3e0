"""MetaMathQA: answer a word problem. A right answer pays 1, and half as much after each wrong one before it.

Problems come from a file or a Hugging Face dataset (`path`), by default from `problems.jsonl` beside this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ragen.env.base import Env
from ragen.env.metamathqa.answers import is_answer, same_answer, stated_answer
from ragen.env.metamathqa.config import MetaMathQAConfig
from ragen.env.problem_files import load_problems, problem_number

OWN_PROBLEMS = Path(__file__).with_name("problems.jsonl")
_QUESTION_KEYS = ("question", "query", "problem", "prompt")
_ANSWER_KEYS = ("answer", "response", "solution")


class MetaMathQA(Env):
    config_class = MetaMathQAConfig
    reward_range = (0.0, 1.0)

    def __init__(self, config: MetaMathQAConfig | None = None):
        super().__init__(config)
        self._text, self._wrong, self._over = "", 0, True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        """Pose the problem of `seed`.

        Raises:
            ValueError: `path` cannot be read, or lacks the columns.
        """
        self.seed_streams(seed, luck)
        config = self.config
        problems = load_problems(config.path or str(OWN_PROBLEMS), config.split, config.subset)
        row = problems[problem_number(seed, len(problems))]
        question = _column(row, "question_key", config.question_key, _QUESTION_KEYS, problems.source)
        answer = _column(row, "answer_key", config.answer_key, _ANSWER_KEYS, problems.source)
        self.load_problem(question, stated_answer(answer))
        return self.render(), {}

    def load_problem(self, question: str, answer: str) -> None:
        """Start the episode of a given problem."""
        self._text, self.answer = question.strip(), answer
        self._steps, self._wrong, self._over = 0, 0, False

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError("the MetaMathQA episode is over; call reset first")
        self._steps += 1
        valid = isinstance(action, str) and is_answer(action, self.answer)
        right = valid and same_answer(action, self.answer)
        reward = 0.5**self._wrong if right else 0.0
        if valid and not right:
            self._wrong += 1
        truncated = not right and self._steps >= self.config.max_steps
        self._over = right or truncated
        info = {"action_is_valid": valid, "action_is_effective": valid, "success": right}
        return self.render(), reward, right, truncated, info

    def render(self, mode: str = "text") -> str:
        if mode != "text":
            raise ValueError(f"metamathqa has no board to draw: mode {mode!r}; use 'text'")
        return f"{self._text}\nWrong answers so far: {self._wrong}" if self._wrong else self._text

    def instruction(self) -> str:
        return (
            "Solve the problem. Answer with the result alone: a number, a fraction like 3/4, or a short expression.\n"
            "Reward: 1 for the right answer, half as much after each wrong one."
        )

    def oracle_action(self) -> str | None:
        return None if self._over else self.answer

    def random_action(self, rng: np.random.Generator) -> str | None:
        return str(int(rng.integers(1, 101)))


def _column(row: Mapping[str, Any], key: str, wanted: str | None, usual: tuple[str, ...], source: str) -> str:
    names = [name for name in ([wanted] if wanted else usual) if row.get(name) is not None]
    if not names:
        looked = repr(wanted) if wanted else ", ".join(usual)
        raise ValueError(f"{source} has no {looked} in a row with {', '.join(row)}; name the column with {key}")
    return str(row[names[0]])
