"""SearchQA: answer a question after looking things up, with the actions `search[query]` and `finish[answer]`.

`finish` ends the episode and pays 1 for an exact match, else F1 where it reaches `min_f1`, else 0; searching is free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ragen.env.base import Env
from ragen.env.problem_files import load_problems, problem_number
from ragen.env.search.config import SearchConfig
from ragen.env.search.passages import MockRetriever, Passage, Retriever, bm25_retriever
from ragen.env.search.scoring import answer_reward, normalise

OWN_QUESTIONS = Path(__file__).with_name("questions.jsonl")
_ACTION = re.compile(r"(search|finish)\s*\[(.*)\]", re.IGNORECASE | re.DOTALL)
_ANSWER_KEYS = ("answers", "golden_answers", "answer")
#: What a random player answers with, where it has read nothing yet.
_GUESSES = ("yes", "no", "one", "two", "the first")


class Search(Env):
    config_class = SearchConfig
    reward_range = (0.0, 1.0)

    def __init__(self, config: SearchConfig | None = None):
        super().__init__(config)
        if self.config.retriever == "http":
            self._retriever()  # its packages are an extra: a missing one is reported now
        self._over = True

    def reset(self, seed: int, *, luck: int | None = None) -> tuple[str, dict[str, Any]]:
        """Pose the question of `seed`. Nothing is left to luck.

        Raises:
            ValueError: questions or corpus cannot be read.
        """
        self.seed_streams(seed, luck)
        config = self.config
        rows = load_problems(config.questions or str(OWN_QUESTIONS), config.split, config.subset)
        row = rows[problem_number(seed, len(rows))]
        self.question = _text(row, "question", rows.source)
        self.answers = _answers(row, rows.source)
        self._support = [str(ident) for ident in row.get("support") or ()]
        self._query, self._found, self._end = None, [], None
        self._steps, self._over = 0, False
        self._mock_seed = int(self.level_rng.integers(2**63))
        self._retriever()  # a corpus that cannot be read is found now, and indexed once
        return self.render(), {}

    def _retriever(self) -> Retriever:
        """Never kept in self: an environment stays small and can be pickled."""
        config = self.config
        if config.retriever == "bm25":
            return bm25_retriever(config.corpus)
        if config.retriever == "mock":
            return MockRetriever(config.corpus, self._support, np.random.default_rng(self._mock_seed))
        from ragen.env.search.http_retriever import http_retriever

        return http_retriever(config.base_url, config.http_timeout_s, config.http_tries)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Search or finish.

        Raises:
            RetrievalError: the retrieval service failed.
        """
        if self._over:
            raise RuntimeError("the SearchQA episode is over; call reset first")
        kind, text = self._parse(action)
        reward, effective, finished = 0.0, False, kind == "finish"
        if kind == "search":
            found = self._retriever().search(text, self.config.top_k)
            effective = (text, found) != (self._query, self._found)
            self._query, self._found = text, found
        elif finished:
            reward = answer_reward(text, self.answers, self.config.min_f1)
            self._end, effective = text, True
        self._steps += 1
        truncated = not finished and self._steps >= self.config.max_steps
        self._over = finished or truncated
        info = {"action_is_valid": kind is not None, "action_is_effective": effective, "success": reward > 0}
        return self.render(), reward, finished, truncated, info

    def _parse(self, action: Any) -> tuple[str | None, str]:
        """(`search` or `finish`, what the brackets hold), or (None, "")."""
        if not isinstance(action, str) or len(action) > self.config.max_query_chars + 100:
            return None, ""
        match = _ACTION.fullmatch(action.strip())
        text = " ".join(match[2].split()) if match else ""
        if not text or len(text) > self.config.max_query_chars:
            return None, ""
        return match[1].lower(), text

    # --- what is seen -----------------------------------------------------------------------------------------------

    def render(self, mode: str = "text") -> str:
        if mode != "text":
            raise ValueError(f"search has no board to draw: mode {mode!r}; use 'text'")
        lines = [f"Question: {self.question}"]
        if self._end is not None:
            lines.append(f"You answered: {self._end}")
        elif self._query is not None and not self._found:
            lines.append(f"Nothing was found for: {self._query}")
        elif self._query is not None:
            lines.append(f"Found for: {self._query}")
            lines += [self._shown(number, passage) for number, passage in enumerate(self._found, start=1)]
        return "\n".join(lines)

    def _shown(self, number: int, passage: Passage) -> str:
        text, most = passage.text, self.config.max_passage_chars
        title = f"{passage.title[:most]}: " if passage.title else ""
        return f"[{number}] {title}{text if len(text) <= most else text[:most].rstrip() + ' …'}"

    def instruction(self) -> str:
        config = self.config
        return (
            "Answer the question. Look facts up first: search[words] shows "
            f"up to {config.top_k} passages that match the words; search as often as you need. finish[answer] gives "
            "your answer, a few words without explanation, and ends the task.\n"
            f"Reward: 1 for the right answer; for a partly right one the share of words in common (F1), if at least "
            f"{config.min_f1:g}; else 0."
        )

    # --- players ----------------------------------------------------------------------------------------------------

    def oracle_action(self) -> str | None:
        """Look once, then give the right answer."""
        if self._over:
            return None
        if self._query is None:
            return f"search[{self.question[: self.config.max_query_chars]}]"
        return f"finish[{self.answers[0]}]"

    def random_action(self, rng: np.random.Generator) -> str | None:
        """Search for a word of what is on the page, or answer with one or two."""
        page = " ".join([self.question, *(passage.text for passage in self._found)])
        words = normalise(page).split() or list(_GUESSES)
        start = int(rng.integers(len(words)))
        some = " ".join(words[start : start + int(rng.integers(1, 3))]).replace("|", "")
        return f"{'finish' if rng.random() < 0.3 else 'search'}[{some or _GUESSES[0]}]"


def _text(row: Mapping[str, Any], key: str, source: str) -> str:
    if not str(row.get(key) or "").strip():
        raise ValueError(f"{source} has no {key!r} in a row with {', '.join(map(str, row))}")
    return " ".join(str(row[key]).split())


def _answers(row: Mapping[str, Any], source: str) -> list[str]:
    key = next((key for key in _ANSWER_KEYS if row.get(key) is not None), _ANSWER_KEYS[0])
    value = row.get(key)
    several = isinstance(value, Sequence) and not isinstance(value, str)
    answers = [" ".join(str(answer).split()) for answer in (value if several else [value if value is not None else ""])]
    answers = [answer for answer in answers if answer]
    if not answers:
        raise ValueError(
            f"{source} has no {' or '.join(map(repr, _ANSWER_KEYS))} in a row with {', '.join(map(str, row))}"
        )
    return answers
