"""Passages and where they come from: a BM25 index over a corpus, or the mock that needs none."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ragen.env.problem_files import Problems, load_problems
from ragen.env.text_index import TextIndex

OWN_CORPUS = Path(__file__).with_name("corpus.jsonl")
_BUILDING = threading.Lock()


class Passage(NamedTuple):
    id: str
    title: str
    text: str


class Retriever(Protocol):
    def search(self, query: str, k: int) -> list[Passage]:
        """The best `k` passages, best first, or fewer."""


def as_passage(row: Mapping[str, Any], number: int, source: str) -> Passage:
    """A passage from a row with `text` (and `title`, `id`), or with `contents`: the title, a line break, the text.

    Raises:
        ValueError: the row has neither.
    """
    if row.get("text") is not None:
        title, text = row.get("title") or "", row["text"]
    elif row.get("contents") is not None:
        title, _, text = str(row["contents"]).partition("\n")
        if not text:
            title, text = "", title
    else:
        raise ValueError(f"{source}: passage {number} has neither text nor contents, only {', '.join(map(str, row))}")
    ident = row.get("id")
    return Passage(str(number if ident is None else ident), str(title).strip().strip('"'), " ".join(str(text).split()))


class Bm25Retriever:
    """Searches a corpus that is read and indexed once; rows are turned into passages as they are found."""

    def __init__(self, rows: Problems):
        self._rows = rows
        self._index = TextIndex(f"{p.title} {p.text}" for p in map(self._passage, range(len(rows))))

    def _passage(self, number: int) -> Passage:
        return as_passage(self._rows[number], number, self._rows.source)

    def search(self, query: str, k: int) -> list[Passage]:
        return [self._passage(number) for number in self._index.search(query, k)]


def bm25_retriever(corpus: str | None) -> Bm25Retriever:
    """The index over a corpus file (None: the package's own): one a process, whichever thread asks first.

    Raises:
        ValueError: the file cannot be read, or a row is no passage.
    """
    with _BUILDING:
        return _bm25_retriever(corpus or str(OWN_CORPUS))


@lru_cache(maxsize=4)
def _bm25_retriever(corpus: str) -> Bm25Retriever:
    return Bm25Retriever(load_problems(corpus))


class MockRetriever:
    """Finds the passages that support the question, whatever the query, and others that do not. One per episode."""

    def __init__(self, corpus: str | None, support: Sequence[str], rng: np.random.Generator):
        with _BUILDING:
            passages = _all_passages(corpus or str(OWN_CORPUS))
        self._found = [passages[ident] for ident in support if ident in passages]
        others = [ident for ident in passages if ident not in support]
        self._found += [passages[others[n]] for n in rng.permutation(len(others))[:50]]

    def search(self, query: str, k: int) -> list[Passage]:
        return self._found[:k]


@lru_cache(maxsize=4)
def _all_passages(corpus: str) -> dict[str, Passage]:
    rows = load_problems(corpus)
    return {p.id: p for p in (as_passage(rows[number], number, corpus) for number in range(len(rows)))}
