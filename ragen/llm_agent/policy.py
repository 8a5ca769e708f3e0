"""What plays an episode: the `Policy` protocol, and scripted policies that need no model.

A policy turns the token ids of a turn's context into the next reply's token ids. veRL's rollout servers, a local vLLM
engine, a chat API and the scripts below all look the same to the agent proxy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from ragen.llm_agent.ctx_manager import ContextManager
    from ragen.llm_agent.es_manager import Episode


@dataclass(frozen=True)
class Sampling:
    """How one reply is sampled."""

    max_tokens: int
    """Most new tokens of the reply."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = -1
    """-1: the full vocabulary."""
    seed: int | None = None
    """Seed of this one reply."""
    stop: tuple[str, ...] = ()
    """Strings that end a reply. The tokens that complete the string are kept exactly as sampled."""


@dataclass(frozen=True)
class Generation:
    """One sampled reply."""

    token_ids: list[int]
    """The ids as sampled, the end token included where it was sampled."""
    log_probs: list[float]
    """Same length, natural log, of the distribution that was sampled from."""
    model_version: tuple[int, int] = (0, 0)
    """Least and greatest weight version that sampled it."""


class GenerationError(RuntimeError):
    """The policy gave no usable reply; the message says why. Costs its own episode."""


class GenerationTimeout(GenerationError):
    """The reply took longer than its limit."""


class Policy(Protocol):
    """Anything that continues a token sequence."""

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, images: list[Any] | None = None, episode: str = ""
    ) -> Generation:
        """Sample one reply to `prompt_ids`.

        Args:
            prompt_ids: the whole context of this turn.
            sampling: limits and seed of this reply.
            images: pictures that the prompt refers to, in order.
            episode: stable name of the episode, so that a server can keep its prefix cache.

        Raises:
            GenerationError: no reply. A cancelled call must also stop the engine's work on it.
        """


Script = Callable[["Episode", np.random.Generator], "Any"]


class ScriptedPolicy:
    """Plays by a script instead of a model: for tests, warm starts, and floor and ceiling rows of an evaluation.

    Args:
        script: async `(episode, rng) -> list of action names` for the present turn.
        context: formats and tokenises the reply as a model would write it.
        cut: end a reply at its token limit, as a model's would; False: a reply is as long as it is.
    """

    def __init__(self, script: Script, context: ContextManager, *, cut: bool = True):
        self._script, self._context, self._cut = script, context, cut

    def bind(self, episode: Episode) -> Policy:
        """The policy of one episode; the agent proxy calls it once per episode."""
        return _BoundScript(self._script, self._context, episode, self._cut)


@dataclass
class _BoundScript:
    script: Script
    context: ContextManager
    episode: Episode
    cut: bool

    async def generate(self, prompt_ids, sampling, images=None, episode="") -> Generation:
        actions = await self.script(self.episode, np.random.default_rng(sampling.seed))
        ids = self.context.reply_ids(actions)
        if self.cut:
            ids = ids[: sampling.max_tokens]
        return Generation(ids, [0.0] * len(ids))


async def random_actions(episode: Episode, rng: np.random.Generator) -> list[str]:
    """One random action that is possible now."""
    action = await episode.random_action(rng)
    if action is None:
        raise GenerationError(f"{episode.tag} takes free text and its environment defines no random_action")
    return [action]


async def oracle_actions(episode: Episode, rng: np.random.Generator) -> list[str]:
    """One best action; a random one where the environment knows none (a lost position)."""
    return [await episode.oracle_action() or (await random_actions(episode, rng))[0]]


def mixed_actions(skill: float) -> Script:
    """The oracle's action with probability `skill`, else a random one: scripted play of middling skill."""

    async def script(episode: Episode, rng: np.random.Generator) -> list[str]:
        play = oracle_actions if rng.random() < skill else random_actions
        return await play(episode, rng)

    return script


SCRIPTS: dict[str, Script] = {"random": random_actions, "oracle": oracle_actions}
