"""A client of a retrieval service.

    POST {base_url}/retrieve   {"queries": ["..."], "topk": 5, "return_scores": true}
    200                        {"result": [[{"document": {"id": "7", "contents": "Title\\nText"}, "score": 9.1}, ...]]}

One list per query, best first. A document holds `contents`, or `text` and `title`; an item may also be the document
itself. This is what the servers of search-trained agents usually speak.
"""

from __future__ import annotations

import json
import threading
import time
from functools import lru_cache
from typing import Any

import httpx
import tenacity

from ragen.env.search.passages import Passage, as_passage

#: Bytes of an answer; more is refused, so that a broken service cannot fill the memory.
MAX_ANSWER_BYTES = 8 * 2**20
_AGAIN = frozenset({429, 500, 502, 503, 504})


class RetrievalError(RuntimeError):
    """The service did not answer, or not in the agreed form. The message names its address."""


class _Passing(Exception):
    """A failure that may be over in a moment."""


class HttpRetriever:
    """Asks a service for passages: bounded in time, in tries and in the size of the answer. For any number of threads.

    Args:
        base_url: the service's address, `/retrieve` not included.
        timeout_s: seconds to connect, to send, and for the answer; one request may take about three times as long.
        tries: requests per search, with pauses of 0.1 s, 0.2 s, … (at most 2 s) between them.
    """

    def __init__(self, base_url: str, timeout_s: float = 5.0, tries: int = 3):
        self.url = base_url.rstrip("/") + "/retrieve"
        self.timeout_s, self.tries = timeout_s, tries
        # No proxy from the surroundings: the address is meant as written.
        self._client = httpx.Client(timeout=timeout_s, trust_env=False)

    def search(self, query: str, k: int) -> list[Passage]:
        """The best `k` passages for `query`.

        Raises:
            RetrievalError: no usable answer after all tries.
        """
        again = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self.tries),
            wait=tenacity.wait_exponential(multiplier=0.1, max=2),
            retry=tenacity.retry_if_exception_type(_Passing),
            reraise=True,
        )
        try:
            answer = again(self._ask, query, k)
        except _Passing as error:
            raise RetrievalError(f"{self.url} failed {self.tries} times, the last time: {error}") from error
        return self._passages(answer, k)

    def _ask(self, query: str, k: int) -> Any:
        request = {"queries": [query], "topk": k, "return_scores": True}
        body, deadline = bytearray(), time.monotonic() + self.timeout_s
        try:
            with self._client.stream("POST", self.url, json=request) as response:
                if response.status_code in _AGAIN:
                    raise _Passing(f"status {response.status_code}")
                if response.status_code != 200:
                    raise RetrievalError(f"{self.url} answered with status {response.status_code}, not 200")
                for part in response.iter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        raise RetrievalError(f"{self.url} answered with more than {MAX_ANSWER_BYTES} bytes")
                    if time.monotonic() > deadline:
                        raise _Passing(f"the answer took longer than {self.timeout_s:g} s")
        except httpx.TransportError as error:
            raise _Passing(f"{type(error).__name__}: {error}") from error
        try:
            return json.loads(bytes(body))
        except ValueError as error:
            raise RetrievalError(f"{self.url} did not answer with JSON: {error}") from error

    def _passages(self, answer: Any, k: int) -> list[Passage]:
        try:
            (found,) = answer["result"]
            documents = [item.get("document", item) for item in found[:k]]
            return [as_passage(document, number, self.url) for number, document in enumerate(documents)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RetrievalError(
                f'{self.url} answered in another form than {{"result": [[{{"document": ...}}]]}}: {error!r}'
            ) from error

    def close(self) -> None:
        self._client.close()


_OPENING = threading.Lock()


def http_retriever(base_url: str, timeout_s: float, tries: int) -> HttpRetriever:
    """The process's client of that service: its connections are shared by all environments."""
    with _OPENING:
        return _http_retriever(base_url, timeout_s, tries)


_http_retriever = lru_cache(maxsize=8)(HttpRetriever)
