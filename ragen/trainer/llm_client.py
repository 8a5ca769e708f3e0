"""veRL's rollout servers as a `Policy`: token ids in, token ids out, and a cancelled reply is aborted in the engine."""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from dataclasses import dataclass
from typing import Any

from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from ragen.llm_agent.policy import Generation, GenerationError, Sampling
from ragen.llm_agent.seeds import resumed_seed


@dataclass
class _Call:
    """One reply being sampled."""

    prompt_tokens: int
    vllm_id: str = ""
    """What vLLM knows the present request by: a reply that was interrupted goes on as another request."""
    server: Any = None
    """The server that took it."""


_current: contextvars.ContextVar[_Call] = contextvars.ContextVar("current_call")


class KnownRequests(LLMServerClient):
    """veRL's client, which hides vLLM's request id and the chosen server, both needed to abort one request."""

    def _vllm_request_id(self, request_id: str) -> str:
        call = _current.get()
        call.vllm_id = uuid.uuid4().hex
        return call.vllm_id

    async def _acquire_server(self, request_id: str, **extra: Any):
        server_id, server = await super()._acquire_server(request_id, **extra)
        _current.get().server = server
        return server_id, server


class AbortableClient(KnownRequests):
    """Aborts single requests, and balances by itself.

    All requests of a run come from one agent proxy, so veRL's load balancer works here, in the client, and not as an
    actor: no round trip per request, and no process that takes as long to start as all of vLLM to import.

    Args:
        servers: address → handle of the rollout servers.
    """

    def __init__(self, config: Any, servers: dict[str, Any], load_balancer_handle: Any = None):
        super().__init__(config, load_balancer_handle)
        self._balancer = GlobalRequestLoadBalancer(servers)

    async def _acquire_server(self, request_id: str, **extra: Any):
        server_id, server = self._balancer.acquire_server(request_id)
        _current.get().server = server
        return server_id, server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        self._balancer.release_server(server_id, request_id)


class _SeedPerPart(LLMServerClient):
    """What veRL's resuming client calls for each part of a reply: each part draws from a stream of its own.

    The engine starts a request's stream anew, so that the rest of an interrupted reply would be drawn with the very
    numbers that its beginning was drawn with.
    """

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **rest: Any):
        done = len(prompt_ids) - _current.get().prompt_tokens
        if done and sampling_params.get("seed") is not None:
            sampling_params = {**sampling_params, "seed": resumed_seed(sampling_params["seed"], done)}
        return await super().generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, **rest)


class ResumingClient(AbortableClient, FullyAsyncLLMServerClient, _SeedPerPart):
    """Replies that a weight sync interrupts go on afterwards, with the new weights (`ragen_colocate_async`)."""


class SeparateClient(KnownRequests, FullyAsyncLLMServerClient, _SeedPerPart):
    """The same where servers come and go, which veRL's balancing actor keeps book of (`ragen_separate_async`)."""


class VerlPolicy:
    """`Policy` over an `AbortableClient`.

    Args:
        client: as returned by `LLMServerManager.get_client(client_cls=AbortableClient)`.
    """

    def __init__(self, client: AbortableClient):
        self._client = client

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, images: list[Any] | None = None, episode: str = ""
    ) -> Generation:
        """See `Policy.generate`. `episode` keeps an episode on one server, and with it that server's prefix cache."""
        call = _Call(len(prompt_ids))
        _current.set(call)
        params: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_tokens": sampling.max_tokens,
            "logprobs": True,
        }
        if sampling.seed is not None:
            params["seed"] = sampling.seed
        if sampling.stop:
            params["stop"] = list(sampling.stop)
        try:
            output = await self._client.generate(
                episode or uuid.uuid4().hex, prompt_ids=prompt_ids, sampling_params=params, image_data=images
            )
        except asyncio.CancelledError:
            if call.server is not None and call.vllm_id:  # other requests keep their cache
                call.server.abort_request.remote(call.vllm_id, reset_prefix_cache=False)
            raise
        except Exception as error:  # Ray wraps whatever the server raised
            raise GenerationError(f"the rollout server failed: {type(error).__name__}: {error}") from error
        if output.stop_reason in ("aborted", "abort"):
            raise GenerationError("the rollout server aborted the request")
        if output.log_probs is None:
            raise GenerationError("the rollout server returned no log-probs: set rollout.calculate_log_probs=true")
        if len(output.log_probs) != len(output.token_ids):
            raise GenerationError(f"{len(output.log_probs)} log-probs for {len(output.token_ids)} tokens came back")
        fields = output.extra_fields
        versions = (int(fields.get("min_global_steps") or 0), int(fields.get("max_global_steps") or 0))
        return Generation(list(output.token_ids), list(output.log_probs), versions)
