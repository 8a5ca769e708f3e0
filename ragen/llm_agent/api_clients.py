"""One call of a chat API: messages in, text and token counts out. `openai` and `anthropic` do the talking.

A client makes one try and never waits to make another; `api_policy.py` decides on that. What goes wrong is a
`CallFailed`, whose text never holds the key.
"""

from __future__ import annotations

import asyncio
import email.utils
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ragen.llm_agent.policy import Sampling

__all__ = ["AnthropicClient", "CallFailed", "ChatClient", "ChatReply", "OpenAIClient"]

#: Letters of an endpoint's complaint that are kept.
_COMPLAINT = 300
#: What an empty reply of an earlier turn is told as, where an endpoint refuses an empty message.
_EMPTY = "(empty)"


@dataclass(frozen=True)
class ChatReply:
    """What an endpoint answered."""

    text: str
    cut: bool
    """It ends at its token limit."""
    input_tokens: int | None
    """As the endpoint counts them; None: it does not say."""
    output_tokens: int | None


class CallFailed(RuntimeError):
    """One try gave no reply; the text is one line."""

    def __init__(
        self,
        text: str,
        *,
        status: int | None = None,
        again: bool = False,
        retry_after_s: float | None = None,
        timed_out: bool = False,
        refused: str | None = None,
    ):
        super().__init__(text)
        self.status = status
        """HTTP status; None: there was no answer at all."""
        self.again = again
        """Another try may succeed."""
        self.retry_after_s = retry_after_s
        """The endpoint asked for this pause."""
        self.timed_out = timed_out
        self.refused = refused
        """The parameter of the request that the endpoint does not take."""


class ChatClient(Protocol):
    """An endpoint that plays one model."""

    async def complete(self, messages: list[dict[str, str]], sampling: Sampling) -> ChatReply:
        """The reply to a chat.

        Raises:
            CallFailed: there is none.
        """

    async def close(self) -> None:
        """Let the connections go."""


class _Client:
    """What both clients share: the request's parameters, the time limit, and reading what went wrong."""

    def __init__(self, sdk: Any, key: str, model: str, timeout_s: float, extra: Mapping[str, Any]):
        self._sdk, self._key, self._model, self._timeout_s, self._extra = sdk, key, model, timeout_s, extra

    def _parameters(self, **own: Any) -> dict[str, Any]:
        """The parameters of a request: ours, then those of `generation_kwargs`; what is null there is not sent."""
        merged = {**own, **self._extra}
        return {name: value for name, value in merged.items() if value is not None}

    async def _within_limit(self, call: Any, parameters: Mapping[str, Any]) -> Any:
        try:
            return await asyncio.wait_for(call, self._timeout_s)
        except asyncio.TimeoutError:
            text = f"no answer within model_config.request_timeout_s={self._timeout_s:g}"
            raise CallFailed(text, again=True, timed_out=True) from None
        except Exception as error:
            raise self._failure(error, parameters) from None

    def _failure(self, error: Exception, parameters: Mapping[str, Any]) -> CallFailed:
        cause = f": {error.__cause__}" if error.__cause__ is not None else ""
        text = " ".join(f"{type(error).__name__}: {error}{cause}".replace(self._key, "***").split())[:_COMPLAINT]
        status = getattr(error, "status_code", None)
        if status is None:  # both packages have these for an endpoint that does not answer
            kind = type(error).__name__
            again = kind in ("APIConnectionError", "APITimeoutError")
            return CallFailed(text, again=again, timed_out=kind == "APITimeoutError")
        spent = status == 429 and getattr(error, "code", None) == "insufficient_quota"  # no wait brings money back
        return CallFailed(
            text,
            status=402 if spent else status,
            again=(status in (408, 409, 429) or status >= 500) and not spent,
            retry_after_s=_retry_after(error.response.headers),
            refused=_refused(error, text, parameters) if status in (400, 422) else None,
        )

    async def close(self) -> None:
        """See `ChatClient.close`."""
        await self._sdk.close()


class OpenAIClient(_Client):
    """Chat completions, as OpenAI, Together, DeepSeek, vLLM and many others serve them.

    Args:
        base_url: of the API.
        key: as a server wants it.
        model: name that the server knows.
        timeout_s: most seconds of one call.
        extra: further parameters of each request; null takes one of ours out.
        limit: name of the parameter that limits a reply's tokens.
        seeded: send the seed of each reply.
        full_top_k: send `top_k` even where nothing is cut, since a server may have a default of its own.
    """

    def __init__(
        self,
        *,
        base_url: str,
        key: str,
        model: str,
        timeout_s: float,
        extra: Mapping[str, Any],
        limit: str = "max_tokens",
        seeded: bool = False,
        full_top_k: bool = False,
    ):
        from openai import AsyncOpenAI

        super().__init__(AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0), key, model, timeout_s, extra)
        self._limit, self._seeded, self._full_top_k = limit, seeded, full_top_k

    async def complete(self, messages: list[dict[str, str]], sampling: Sampling) -> ChatReply:
        """See `ChatClient.complete`."""
        limit = None if {"max_tokens", "max_completion_tokens"} & self._extra.keys() else sampling.max_tokens
        parameters = self._parameters(
            **{self._limit: limit},
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k if sampling.top_k > 0 or self._full_top_k else None,
            stop=list(sampling.stop) or None,
            seed=sampling.seed if self._seeded else None,
        )
        call = self._sdk.chat.completions.create(
            model=self._model, messages=messages, timeout=self._timeout_s, extra_body=parameters
        )
        answer = await self._within_limit(call, parameters)
        if not getattr(answer, "choices", None):
            raise CallFailed(f"an answer without choices: {answer!s}".replace(self._key, "***")[:_COMPLAINT])
        choice, usage = answer.choices[0], answer.usage
        text = choice.message.content or ""
        cut = choice.finish_reason == "length"
        if not cut:
            text += _stop_string(text, sampling.stop, getattr(choice, "stop_reason", None))
        return ChatReply(text, cut, usage.prompt_tokens if usage else None, usage.completion_tokens if usage else None)


class AnthropicClient(_Client):
    """Anthropic's messages. See `OpenAIClient` for the arguments."""

    def __init__(self, *, base_url: str, key: str, model: str, timeout_s: float, extra: Mapping[str, Any]):
        from anthropic import AsyncAnthropic

        super().__init__(AsyncAnthropic(base_url=base_url, api_key=key, max_retries=0), key, model, timeout_s, extra)

    async def complete(self, messages: list[dict[str, str]], sampling: Sampling) -> ChatReply:
        """See `ChatClient.complete`."""
        parameters = self._parameters(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            # some models take one of temperature and top_p, not both; 1 is what the API does by itself
            top_p=sampling.top_p if sampling.top_p != 1 else None,
            top_k=sampling.top_k if sampling.top_k > 0 else None,
            stop_sequences=list(sampling.stop) or None,
            system="\n\n".join(m["content"] for m in messages if m["role"] == "system") or None,
        )
        said = [{**m, "content": m["content"] or _EMPTY} for m in messages if m["role"] != "system"]
        call = self._sdk.messages.create(
            model=self._model,
            messages=said,
            max_tokens=parameters.get("max_tokens", sampling.max_tokens),
            timeout=self._timeout_s,
            extra_body=parameters,
        )
        answer = await self._within_limit(call, parameters)
        if not isinstance(getattr(answer, "content", None), list):
            raise CallFailed(f"an answer without content: {answer!s}".replace(self._key, "***")[:_COMPLAINT])
        text = "".join(block.text for block in answer.content if block.type == "text")
        usage = answer.usage
        cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        return ChatReply(
            text + (answer.stop_sequence or ""),
            answer.stop_reason == "max_tokens",
            usage.input_tokens + cached,
            usage.output_tokens,
        )


def _stop_string(text: str, stops: Sequence[str], said: Any) -> str:
    """The stop string that ended a reply, which the endpoint left out: as it says, else a tag that is still open."""
    if isinstance(said, str) and said in stops:
        return said
    for stop in stops:
        tag = re.fullmatch(r"</([^<>/]+)>", stop)
        if tag and text.count(f"<{tag[1]}>") > text.count(stop):
            return stop
    return ""


def _refused(error: Exception, text: str, parameters: Mapping[str, Any]) -> str | None:
    """The parameter that an endpoint complains of."""
    named = getattr(error, "param", None)
    if named in parameters:
        return named
    found = (name for name in parameters if re.search(rf"\b{re.escape(name)}\b", text))
    return next(found, None)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of `Retry-After`: a number, or a date; `retry-after-ms` where a server gives it."""
    milliseconds, after = headers.get("retry-after-ms"), headers.get("retry-after")
    try:
        if milliseconds is not None:
            return max(0.0, float(milliseconds) / 1000)
        return None if after is None else max(0.0, float(after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
