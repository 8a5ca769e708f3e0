"""Settings of SearchQA."""

from __future__ import annotations

from dataclasses import dataclass

from ragen.env.config_checks import at_least, one_of


@dataclass
class SearchConfig:
    retriever: str = "bm25"
    """Where passages come from. `bm25`: an index over `corpus`, built once a process. `http`: the service at
    `base_url`. `mock`: the passages that the question names as its support and some others, without any index: for
    trying out a training."""
    questions: str | None = None
    """A .jsonl or .parquet file, or a Hugging Face dataset name. Rows hold `question` and `answers` (or
    `golden_answers`, or `answer`; text or a list of texts); optionally `support`, ids of passages. null: questions
    about an invented archipelago that come with this package."""
    split: str = "train"
    """Which split of a Hugging Face dataset."""
    subset: str | None = None
    """Which configuration of a Hugging Face dataset, where it has several."""
    corpus: str | None = None
    """A .jsonl or .parquet file of passages: `text` and optionally `title` and `id`, or `contents` with the title as
    its first line. null: the passages that go with the package's own questions."""
    top_k: int = 5
    """Passages that a search shows."""
    max_passage_chars: int = 500
    """Longer passages are cut."""
    max_query_chars: int = 500
    """Longer queries and answers are invalid actions."""
    max_steps: int = 10
    """Actions after which the environment truncates the episode."""
    min_f1: float = 0.3
    """Least F1 that pays, and that counts as success."""
    base_url: str | None = None
    """Address of the retrieval service, for `retriever: http`. See `ragen/env/search/http_retriever.py`."""
    http_timeout_s: float = 5.0
    """Seconds that one request may take."""
    http_tries: int = 3
    """Requests per search: a failed connection, a time-out and the statuses 429 and 5xx are tried again."""

    def __post_init__(self):
        at_least(self, top_k=1, max_passage_chars=1, max_query_chars=1, max_steps=1, http_tries=1)
        one_of(self, retriever=("bm25", "http", "mock"))
        if not 0 < self.min_f1 <= 1:
            raise ValueError(f"min_f1 is {self.min_f1!r}; give a number above 0 and at most 1")
        if not self.http_timeout_s > 0:
            raise ValueError(f"http_timeout_s is {self.http_timeout_s!r}; give a number of seconds above 0")
        if (self.base_url is not None) != (self.retriever == "http"):
            raise ValueError(
                f"base_url is {self.base_url!r} with retriever {self.retriever!r}; give both the address and "
                "retriever: http, or neither"
            )
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url is {self.base_url!r}; it starts with http:// or https://")
        if self.retriever == "http" and self.corpus is not None:
            raise ValueError(f"corpus is {self.corpus!r}, which retriever: http does not read; leave it out")
