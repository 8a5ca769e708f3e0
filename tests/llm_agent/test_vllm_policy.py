"""The local vLLM engine as a policy. The fast tests need no vLLM; the slow one starts an engine of random weights."""

import asyncio
from types import SimpleNamespace

import pytest

from ragen.llm_agent.policy import GenerationError, Sampling
from ragen.llm_agent.vllm_policy import VllmPolicy, read_output, sampling_arguments, start_engine


def final_output(token_ids, log_probs, reason="length"):
    logprobs = None if log_probs is None else SimpleNamespace(logprobs=log_probs)
    reply = SimpleNamespace(token_ids=token_ids, logprobs=logprobs, finish_reason=reason)
    return SimpleNamespace(outputs=[reply])


def test_reads_ids_and_log_probs():
    generation = read_output(final_output((200, 201), [-0.5, -1.5], "stop"))
    assert (generation.token_ids, generation.log_probs) == ([200, 201], [-0.5, -1.5])


@pytest.mark.parametrize(
    "output, message",
    [
        (None, "aborted"),
        (final_output([200], [-0.5], "abort"), "aborted"),
        (final_output([200], [-0.5], None), "aborted"),
        (final_output([200, 201], [-0.5]), "1 log-probs for 2 tokens"),
        (final_output([200], None), "0 log-probs for 1 tokens"),
    ],
)
def test_an_unusable_reply_is_a_generation_error(output, message):
    with pytest.raises(GenerationError, match=message):
        read_output(output)


def test_every_field_of_the_sampling_reaches_vllm():
    sampling = Sampling(7, temperature=0.5, top_p=0.9, top_k=3, seed=11, stop=("</a>",))
    arguments = sampling_arguments(sampling, ignore_eos=True)
    wanted = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 11, "stop": ["</a>"]}
    assert arguments.items() >= {**wanted, "ignore_eos": True, "detokenize": True}.items()
    assert not sampling_arguments(Sampling(7))["detokenize"]


def test_other_log_probs_are_refused():
    with pytest.raises(ValueError, match="logprobs_mode='raw_logprobs'"):
        start_engine("nowhere", logprobs_mode="raw_logprobs")


PROMPT = list(range(30, 60))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_engine_returns_the_sampled_ids_with_their_log_probs_and_aborts(tmp_path):
    pytest.importorskip("vllm")
    tokenizer, model = random_model(tmp_path)

    async def play():
        engine = start_engine(str(tmp_path), max_model_len=512)
        try:
            policy = VllmPolicy(engine)
            sampling = Sampling(24, temperature=0.7, top_k=20, seed=3)
            first = await policy.generate(PROMPT, sampling, episode="a")
            again = await policy.generate(PROMPT, sampling, episode="a")

            # A stop string keeps the tokens that complete it, and nothing after them.
            text = tokenizer.decode(first.token_ids[4:6])
            stopped = await policy.generate(PROMPT, Sampling(24, temperature=0.7, top_k=20, seed=3, stop=(text,)))

            with pytest.raises(GenerationError, match="vLLM failed"):
                await policy.generate([1] * 600, Sampling(4))

            endless = VllmPolicy(engine, ignore_eos=True).generate(PROMPT, Sampling(480, seed=1))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(endless, 0.2)
            waiting = engine.output_processor.get_num_unfinished_requests()
            whole = await VllmPolicy(engine, ignore_eos=True).generate(PROMPT, Sampling(50, seed=1))
            return first, again, stopped, waiting, whole
        finally:
            engine.shutdown()

    first, again, stopped, waiting, whole = asyncio.run(play())
    assert first == again
    assert stopped.token_ids == first.token_ids[:6]
    assert waiting == 0
    assert len(whole.token_ids) == 50
    assert first.log_probs == pytest.approx(truncated_log_probs(model, first.token_ids, 0.7, 20), abs=1e-4)


def random_model(folder):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tests.llm_agent.tokenizers_for_tests import byte_tokenizer

    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, initializer_range=0.3, dtype="float32",
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer, model


def truncated_log_probs(model, reply, temperature, top_k):
    """Log-probs of `reply` after PROMPT under temperature and top-k, from transformers."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT + reply])).logits[0, len(PROMPT) - 1 : -1] / temperature
    least = logits.topk(top_k).values[:, -1:]
    log_probs = logits.masked_fill(logits < least, -torch.inf).log_softmax(-1)
    return log_probs[torch.arange(len(reply)), reply].tolist()
