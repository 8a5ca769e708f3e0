"""Shared by the tests of ragen.config."""

from __future__ import annotations

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
    """A throw-away Qwen2 model of 4 words with its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    words = {"<|endoftext|>": 0, "<|im_end|>": 1, "a": 2, "b": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token="<|endoftext|>"
    ).save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, eos_token_id=1, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder
