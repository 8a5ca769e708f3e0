"""Shared by the tests of ragen.config."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from ragen.config import load


@pytest.fixture(scope="session")
def quickstart() -> Callable[..., DictConfig]:
    """`quickstart` with overrides."""
    return lambda *overrides: load("quickstart", overrides)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two 24 GB GPUs and the engine's GPU build, as far as the checks can see."""
    from ragen.config import checks
    from ragen.config.devices import Device

    monkeypatch.setattr(checks, "cuda_devices", lambda visible=None: [Device("Test GPU", 24 * 2**30)] * 2)
    monkeypatch.setattr(checks, "installed", lambda name: "1.0")


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a throw-away model, written without torch: shape, tokenizer of four words, two tensors."""
    import numpy as np
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("model")
    end, pad = "<|im_end|>", "<|endoftext|>"
    tokenizer = Tokenizer(models.WordLevel({pad: 0, end: 1, "a": 2, "b": 3}, unk_token=pad))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": pad, "unk_token": pad}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    shape = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 4, "hidden_size": 16,
        "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 4096, "eos_token_id": 1, "pad_token_id": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(shape))
    tensors = {"model.embed_tokens.weight": (4, 16), "model.norm.weight": (16,)}
    save_file({name: np.zeros(size, np.float32) for name, size in tensors.items()}, folder / "model.safetensors")
    return folder
