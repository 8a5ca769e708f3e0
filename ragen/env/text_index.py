"""BM25 search over texts, for environments that search: built once, then only read, so that threads may share it.

The library is bm25s. Ties are broken by position, so that results depend on nothing but the texts and the query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

#: A query beyond so many words is cut: the time of a search grows with its words.
MAX_QUERY_WORDS = 64
_WORD = re.compile(r"\w+")
_STOP_WORDS = frozenset("a an and are as at be by for from in is it of on or that the this to was were with".split())


def words(text: str) -> list[str]:
    """The words that count: lower case, no punctuation, without the commonest ones."""
    return [word for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS]


class TextIndex:
    """Finds texts by their words. Read-only after construction."""

    def __init__(self, texts: Iterable[str]):
        import bm25s

        tokens = [words(text) for text in texts]
        self._bm25 = None
        if any(tokens):
            self._bm25 = bm25s.BM25(auto_compile=False)  # numpy alone: compiling would cost more than it saves here
            self._bm25.index(tokens, show_progress=False)

    def search(self, query: str, k: int) -> list[int]:
        """Numbers of the `k` best texts, best first; fewer where fewer share a word with the query."""
        if self._bm25 is None:
            return []
        known = [word for word in words(query)[:MAX_QUERY_WORDS] if word in self._bm25.vocab_dict]
        if not known:
            return []
        scores = self._bm25.get_scores(known)
        best = np.argsort(-scores, kind="stable")[:k]
        return [int(number) for number in best if scores[number] > 0]
