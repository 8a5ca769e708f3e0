"""Settings of MetaMathQA."""

from __future__ import annotations

from dataclasses import dataclass

from ragen.env.config_checks import at_least


@dataclass
class MetaMathQAConfig:
    path: str | None = None
    """Where the problems come from: a .parquet or .jsonl file, or a Hugging Face dataset name such as
    `meta-math/MetaMathQA`. null: a small file of word problems that comes with this package."""
    split: str = "train"
    """Which split of a Hugging Face dataset."""
    subset: str | None = None
    """Which configuration of a Hugging Face dataset, where it has several (`main` of `openai/gsm8k`)."""
    question_key: str | None = None
    """Column of the question; null: the first of question, query, problem, prompt that is there."""
    answer_key: str | None = None
    """Column of the answer, or of a solution that ends in `The answer is: …`, `#### …` or holds `\\boxed{…}`; null: the
    first of answer, response, solution that is there."""
    max_steps: int = 5
    """Answers after which the environment truncates the episode. Each wrong one halves what a right one pays."""

    def __post_init__(self):
        at_least(self, max_steps=1)
