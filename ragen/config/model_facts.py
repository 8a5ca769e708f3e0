"""What a model's folder tells without loading the model: size, shape, positions, length of the first prompt."""

from __future__ import annotations

import dataclasses
import functools
import json
import struct
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ragen.checkpoint import actor_folder

__all__ = ["ModelFacts", "local_folder"]

#: A prompt has at most this many characters per token, about; used where no tokenizer is at hand.
_CHARS_PER_TOKEN = 6


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """Figures of a model; None where they cannot be read, for example of a hub model that is not downloaded."""

    parameters: int | None = None
    hidden: int | None = None
    layers: int | None = None
    vocabulary: int | None = None
    #: Longest context that the model knows, in tokens.
    max_positions: int | None = None
    #: Elements of the key-value cache per token, all layers together.
    cache_per_token: int | None = None
    #: Least number of tokens of the longest first prompt among the tags in use.
    first_prompt_tokens: int | None = None

    @classmethod
    def of(cls, cfg: DictConfig, folder: str | Path | None = None) -> ModelFacts:
        """Facts of `cfg.model_path`, or of `folder` where that name is resolved already."""
        where = local_folder(str(folder or cfg.model_path))
        envs = {}
        for side in ("train", "val"):
            for tag in cfg.es_manager[side].env_configs.tags:
                if tag in cfg.custom_envs:
                    envs[tag] = OmegaConf.to_container(cfg.custom_envs[tag], resolve=True)
        prompt = _first_prompt(where, json.dumps(envs, sort_keys=True))
        return dataclasses.replace(_shape(where), first_prompt_tokens=prompt)


def local_folder(model_path: str) -> Path | None:
    """The folder of a model's config and tokenizer on this machine: given, downloaded or a checkpoint's; else None."""
    path = Path(model_path).expanduser()
    if (actor := actor_folder(path)) is not None:
        path = actor / "huggingface"
    if (path / "config.json").is_file():
        return path
    if model_path.count("/") != 1 or model_path.startswith(("/", ".", "~")):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(model_path, "config.json")
    return Path(cached).parent if isinstance(cached, str) else None


@functools.lru_cache(maxsize=8)
def _shape(folder: Path | None) -> ModelFacts:
    if folder is None:
        return ModelFacts()
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = {**config, **config.get("text_config", {})}
    hidden, layers, vocabulary = (config.get(k) for k in ("hidden_size", "num_hidden_layers", "vocab_size"))
    heads = config.get("num_attention_heads")
    cache = None
    if hidden and layers and heads:
        head_dim = config.get("head_dim") or hidden // heads
        cache = 2 * layers * (config.get("num_key_value_heads") or heads) * head_dim
    parameters = _count_parameters(folder)
    if parameters is None and cache and vocabulary and config.get("intermediate_size"):
        parameters = _estimate_parameters(config, cache)
    return ModelFacts(parameters, hidden, layers, vocabulary, config.get("max_position_embeddings"), cache)


def _count_parameters(folder: Path) -> int | None:
    """Elements of all tensors, read from the headers of the safetensors files; None where there are none."""
    files = sorted(folder.glob("*.safetensors"))
    total = 0
    for file in files:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        for name, tensor in header.items():
            if name != "__metadata__":
                size = 1
                for n in tensor["shape"]:
                    size *= n
                total += size
    return total if files else None


def _estimate_parameters(config: dict[str, Any], cache: int) -> int:
    """Of a decoder with gated feed-forward layers, from its shape."""
    hidden, layers, vocabulary = config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]
    heads = config["num_attention_heads"]
    queries = (config.get("head_dim") or hidden // heads) * heads
    attention = layers * 2 * hidden * queries + cache * hidden
    experts = config.get("num_experts") or config.get("num_local_experts") or 0
    width = (config.get("moe_intermediate_size") or config["intermediate_size"]) if experts else 0
    feed_forward = layers * 3 * hidden * (width * experts if experts else config["intermediate_size"])
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return attention + feed_forward + embeddings + (2 * layers + 1) * hidden


@functools.lru_cache(maxsize=8)
def _first_prompt(folder: Path | None, envs: str) -> int | None:
    """At least so many tokens has the longest first prompt: instruction and observation, without any template."""
    from ragen.env.registry import load_specs

    lengths = []
    for tag, entry in json.loads(envs).items():
        try:
            env = load_specs({tag: entry})[tag].make()
            observation, _ = env.reset(0)
            text = f"{env.instruction()}\n{observation if isinstance(observation, str) else ''}"
            env.close()
        except Exception:
            continue  # what is wrong with an environment is reported by its own check
        lengths.append(_tokens(folder, text))
    return max(lengths, default=None)


def _tokens(folder: Path | None, text: str) -> int:
    file = folder / "tokenizer.json" if folder is not None else None
    if file is None or not file.is_file():
        return len(text) // _CHARS_PER_TOKEN
    from tokenizers import Tokenizer

    return len(Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids)
