"""What an episode cost, beside what it did: replies cut at their limit.

A policy adds to the meter of the episode that it is asked for; whoever plays the episode sets one up. Where none is,
nothing is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ragen.llm_agent.policy import Generation, Policy, Sampling

_METER: ContextVar[Counter | None] = ContextVar("episode_meter", default=None)


@contextmanager
def episode_meter() -> Iterator[Counter]:
    """A meter for all that this coroutine, and what it starts, adds."""
    meter: Counter = Counter()
    token = _METER.set(meter)
    try:
        yield meter
    finally:
        _METER.reset(token)


def count(**amounts: float) -> None:
    """Add to the present episode's meter."""
    meter = _METER.get()
    if meter is not None:
        meter.update(amounts)


class CountsTruncated:
    """A `Policy` over token ids that counts its replies that were cut at their limit.

    Args:
        policy: what generates.
        ends: ids that end a reply.
    """

    def __init__(self, policy: Policy, ends: frozenset[int]):
        self._policy, self._ends = policy, ends

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, images: list[Any] | None = None, episode: str = ""
    ) -> Generation:
        """See `Policy.generate`."""
        reply = await self._policy.generate(prompt_ids, sampling, images=images, episode=episode)
        full = len(reply.token_ids) >= sampling.max_tokens
        count(truncated_replies=float(full and reply.token_ids[-1] not in self._ends))
        return reply
