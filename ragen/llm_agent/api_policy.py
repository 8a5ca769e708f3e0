"""A model behind a chat API as a `Policy`: pace, retries, and what they cost.

A call that fails for a while is made again, as often as `max_retries` says: after the pause that the endpoint asks for
(`Retry-After`), else after a random one that grows. One that fails for good costs its own episode. Where the endpoint
can play nothing at all (its key is refused, the account is empty; or, before it has ever answered, it is not there, has
no such model or refuses a parameter), the evaluation stops instead, so that it can be continued once that is put right.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from ragen.config.errors import NO_VALUE, ConfigError, Fault
from ragen.llm_agent.api_clients import CallFailed, ChatClient, ChatReply
from ragen.llm_agent.byte_chat import messages_of
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.meter import count
from ragen.llm_agent.policy import Generation, GenerationError, GenerationTimeout, Sampling

__all__ = ["ApiPolicy", "Pace"]

#: Statuses with which an endpoint says that it plays nothing, whenever it says so.
_STOPS = (401, 402)
#: … and those that say it where no call has succeeded yet; later, they are about one chat.
_STOPS_AT_FIRST = (403, 404)


class Pace:
    """Lets calls through at most so often, evenly; the endpoint may ask for a pause, which then holds for all.

    Args:
        per_minute: calls a minute; None: as they come.
    """

    def __init__(self, per_minute: float | None):
        self._gap_s = 60 / per_minute if per_minute else 0.0
        self._next = 0.0

    async def turn(self) -> None:
        """Wait until the next call may be made."""
        while (wait_s := self._next - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)
        self._next = time.monotonic() + self._gap_s

    def pause(self, seconds: float) -> None:
        """No call before so many seconds have passed."""
        self._next = max(self._next, time.monotonic() + seconds)


class ApiPolicy:
    """Plays by calls of an endpoint.

    Args:
        client: makes one try.
        ctx: of a `byte_tokenizer`; encodes replies for the record.
        name: entry of `model_info`, for messages.
        pace: shared by all episodes.
        max_retries: further tries of a call.
        retry_wait_s: about how long the first pause between tries is, where the endpoint does not say.
        max_wait_s: the longest pause; an endpoint that asks for a longer one has failed.
    """

    def __init__(
        self,
        client: ChatClient,
        ctx: ContextManager,
        *,
        name: str,
        pace: Pace,
        max_retries: int,
        retry_wait_s: float,
        max_wait_s: float,
    ):
        self._client, self._ctx, self._name, self._pace = client, ctx, name, pace
        self._max_retries, self._retry_wait_s, self._max_wait_s = max_retries, retry_wait_s, max_wait_s
        self._answered = False

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, images: list[Any] | None = None, episode: str = ""
    ) -> Generation:
        """See `Policy.generate`. The ids are bytes of the reply's text; the log-probs are 0, as none are known.

        Raises:
            ConfigError: the endpoint plays nothing; see the module's text.
        """
        try:
            reply = await self._call(messages_of(prompt_ids), sampling)
        except CallFailed as error:
            self._stop_if_hopeless(error)
            failed = GenerationTimeout if error.timed_out else GenerationError
            raise failed(f"{self._name}: {error}") from None
        self._answered = True
        count(
            api_input_tokens=reply.input_tokens or 0,
            api_output_tokens=reply.output_tokens or 0,
            api_uncounted_replies=float(reply.input_tokens is None or reply.output_tokens is None),
            truncated_replies=float(reply.cut),
        )
        ids = self._ctx.encode(self._ctx.control_texts.hide(reply.text))
        if not reply.cut or not ids:
            ids.append(self._ctx.tokenizer.eos_token_id)
        return Generation(ids, [0.0] * len(ids))

    async def _call(self, messages: list[dict[str, str]], sampling: Sampling) -> ChatReply:
        """One call with its further tries."""
        random_wait = wait_random_exponential(multiplier=self._retry_wait_s, max=self._max_wait_s)

        def wait_s(state: Any) -> float:
            asked = state.outcome.exception().retry_after_s
            return random_wait(state) if asked is None else asked

        def before_sleep(state: Any) -> None:
            count(api_retries=1)
            if state.outcome.exception().status == 429:
                self._pace.pause(state.next_action.sleep)

        tries = AsyncRetrying(
            retry=retry_if_exception(self._worth_another),
            stop=stop_after_attempt(1 + self._max_retries),
            wait=wait_s,
            before_sleep=before_sleep,
            reraise=True,
        )
        return await tries(self._try, messages, sampling)

    async def _try(self, messages: list[dict[str, str]], sampling: Sampling) -> ChatReply:
        await self._pace.turn()
        count(api_calls=1)
        return await self._client.complete(messages, sampling)

    def _worth_another(self, error: BaseException) -> bool:
        return isinstance(error, CallFailed) and error.again and (error.retry_after_s or 0.0) <= self._max_wait_s

    def _stop_if_hopeless(self, error: CallFailed) -> None:
        """Raise where no other episode would fare better."""
        entry = f"model_info.{self._name}"
        first = not self._answered
        if error.status in _STOPS:
            raise ConfigError([Fault(entry, NO_VALUE, str(error), "look at the key and the account; the same command "
                                     "goes on with what is missing")])  # fmt: skip
        if first and error.refused is not None:
            key = f"{entry}.generation_kwargs.{error.refused}"
            fix = "set it to what the endpoint takes; null leaves the parameter out"
            if error.refused == "max_tokens":
                fix += f"; {entry}.generation_kwargs.max_completion_tokens=<n> is its other name"
            raise ConfigError([Fault(key, NO_VALUE, f"the endpoint refuses this parameter: {error}", fix)])
        if first and error.status in _STOPS_AT_FIRST:
            raise ConfigError([Fault(f"{entry}.model_name", NO_VALUE, str(error), "look at the name and the rights")])
        if first and error.status is None and error.again and not error.timed_out:
            raise ConfigError([Fault(f"{entry}.base_url", NO_VALUE, str(error), "is the server up?")])
