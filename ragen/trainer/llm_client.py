"""veRL's rollout servers as a `Policy`: token ids in, token ids out, and a cancelled reply is aborted in the engine."""

from __future__ import annotations

import asyncio
import contextvars
import uuid
from dataclasses import dataclass
from typing import Any

from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from ragen.llm_agent.policy import Generation, GenerationError, Sampling


@dataclass
class _Call:
    """One request: the id that vLLM knows it by, and the server that took it."""

    vllm_id: str
    server: Any = None


_current: contextvars.ContextVar[_Call] = contextvars.ContextVar("current_call")


class AbortableClient(LLMServerClient):
    """veRL's client, which hides vLLM's request id and the chosen server, both needed to abort one request.

    All requests of a run come from one agent proxy, so veRL's load balancer works here, in the client, and not as an
    actor: no round trip per request, and no process that takes as long to start as all of vLLM to import.

    Args:
        servers: address → handle of the rollout servers.
    """

    def __init__(self, config: Any, servers: dict[str, Any], load_balancer_handle: Any = None):
        super().__init__(config, load_balancer_handle)
        self._balancer = GlobalRequestLoadBalancer(servers)

    def _vllm_request_id(self, request_id: str) -> str:
        return _current.get().vllm_id

    async def _acquire_server(self, request_id: str, **extra: Any):
        server_id, server = self._balancer.acquire_server(request_id)
        _current.get().server = server
        return server_id, server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        self._balancer.release_server(server_id, request_id)


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
        call = _Call(uuid.uuid4().hex)
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
                episode or call.vllm_id, prompt_ids=prompt_ids, sampling_params=params, image_data=images
            )
        except asyncio.CancelledError:
            if call.server is not None:  # other requests keep their cache
                call.server.abort_request.remote(call.vllm_id, reset_prefix_cache=False)
            raise
        except Exception as error:  # Ray wraps whatever the server raised
            raise GenerationError(f"the rollout server failed: {type(error).__name__}: {error}") from error
        if output.stop_reason in ("aborted", "abort"):
            raise GenerationError("the rollout server aborted the request")
        if output.log_probs is None:
            raise GenerationError("the rollout server returned no log-probs: set rollout.calculate_log_probs=true")
        fields = output.extra_fields
        versions = (int(fields.get("min_global_steps") or 0), int(fields.get("max_global_steps") or 0))
        return Generation(list(output.token_ids), list(output.log_probs), versions)
