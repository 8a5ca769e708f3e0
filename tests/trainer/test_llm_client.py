"""Replies that a weight sync interrupts go on as another request, with random numbers of their own. No Ray, no vLLM."""

import asyncio
from types import SimpleNamespace

import pytest
from verl.workers.rollout.llm_server import LLMServerClient

from ragen.llm_agent.policy import GenerationError, Sampling
from ragen.trainer import llm_client
from ragen.trainer.llm_client import AbortableClient, ResumingClient, VerlPolicy


class Server:
    """Gives out the parts of one reply, one a request; all but the last are interrupted."""

    def __init__(self, *parts, log_probs=True):
        self.parts, self.log_probs, self.requests = list(parts), log_probs, []
        self.generate = SimpleNamespace(remote=self._generate)

    async def _generate(self, request_id, prompt_ids, sampling_params, **_):
        self.requests.append((request_id, list(prompt_ids), dict(sampling_params)))
        version, ids = len(self.requests), self.parts.pop(0)
        return SimpleNamespace(
            token_ids=ids,
            log_probs=[-float(version)] * len(ids) if self.log_probs else None,
            stop_reason="aborted" if self.parts else "completed",
            extra_fields={"global_steps": version},
            routed_experts=None,
            num_preempted=0,
        )


def reply(monkeypatch, server, client_cls, seed=7):
    async def at_once(_):
        pass

    monkeypatch.setattr("verl.workers.rollout.llm_server.asyncio.sleep", at_once)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="vllm")))
    policy = VerlPolicy(client_cls(config, {"here": server}))
    return asyncio.run(policy.generate([1, 2, 3], Sampling(max_tokens=10, seed=seed), episode="e"))


def test_an_interrupted_reply_goes_on_where_it_stopped(monkeypatch):
    server = Server([10, 11], [12])
    generation = reply(monkeypatch, server, ResumingClient)
    assert generation.token_ids == [10, 11, 12] and generation.log_probs == [-1.0, -1.0, -2.0]
    assert generation.model_version == (1, 2)
    (first, prompt, params), (second, longer, rest) = server.requests
    assert prompt == [1, 2, 3] and longer == [1, 2, 3, 10, 11] and first != second
    assert (params["max_tokens"], rest["max_tokens"]) == (10, 8)
    assert params["seed"] == 7 and rest["seed"] != 7


def test_a_reply_interrupted_before_its_first_token_keeps_its_seed(monkeypatch):
    server = Server([], [10])
    assert reply(monkeypatch, server, ResumingClient).token_ids == [10]
    assert [params["seed"] for _, _, params in server.requests] == [7, 7]


def test_the_synchronous_client_has_nothing_to_go_on_with(monkeypatch):
    with pytest.raises(GenerationError, match="aborted the request"):
        reply(monkeypatch, Server([10], [11]), AbortableClient)


def test_log_probs_of_a_part_only_are_no_reply(monkeypatch):
    with pytest.raises(GenerationError, match="0 log-probs for 2 tokens"):
        reply(monkeypatch, Server([10], [11], log_probs=False), ResumingClient)


def test_each_part_passes_through_the_seed_on_its_way_to_the_server():
    for client in (ResumingClient, llm_client.SeparateClient):
        order = client.__mro__
        assert order.index(llm_client.FullyAsyncLLMServerClient) < order.index(llm_client._SeedPerPart)
        assert order.index(llm_client._SeedPerPart) < order.index(LLMServerClient)
