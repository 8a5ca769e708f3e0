"""Whether a recording (`offline.path`) can be trained on by a run, and what differs between the two."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ragen.config.errors import Fault
from ragen.config.model_facts import ModelFacts, local_folder
from ragen.config.to_verl import absolute, recorded, resolve_seed
from ragen.eval.records import RecordError
from ragen.eval.run_tokenizer import TokenizerNotFound, load_tokenizer
from ragen.llm_agent.byte_chat import BYTE_TOKENS
from ragen.llm_agent.prompt_hash import PROMPTS_FILE, prompt_hash, prompt_settings
from ragen.llm_agent.trajectory import Trajectory
from ragen.trainer.recording import load_groups

__all__ = ["cautions", "faults", "share"]

_KEY = "offline.path"
#: Groups whose replies are decoded again.
_DECODED = 20


def share(cfg: DictConfig) -> str:
    """What of a step is recorded, in words."""
    groups = load_groups(absolute(cfg.offline.path))
    tags = sorted({group[0].tag for group in groups})
    return f"{cfg.offline.ratio:g} of each step's groups from {len(groups)} recorded ({', '.join(tags)})"


def faults(cfg: DictConfig) -> Iterator[Fault]:
    """Why the recording is no training data for this run."""
    if not recorded(cfg):
        return
    path, train = cfg.offline.path, cfg.es_manager.train
    try:
        groups = load_groups(absolute(path))
    except RecordError as error:
        yield Fault(_KEY, path, str(error), "python -m ragen.eval.records FILE checks a file")
        return
    episodes = [t for group in groups for t in group]
    if len(groups) < cfg.offline.ratio * train.env_groups:
        taken = f"{cfg.offline.ratio * train.env_groups:g}"
        yield Fault(_KEY, path, f"holds {len(groups)} usable groups, and a step takes {taken}",
                    "lower offline.ratio or env_groups, or record more")  # fmt: skip
    if not episodes:
        return
    largest = max(len(group) for group in groups)
    if largest > train.group_size:
        yield Fault("es_manager.train.group_size", train.group_size,
                    f"recorded groups of up to {largest} members stay whole", f"set it to {largest}")  # fmt: skip
    for tag in sorted({t.tag for t in episodes} - set(cfg.custom_envs)):
        yield Fault(_KEY, path, f"holds episodes of {tag}, which is not in custom_envs", "add its entry")
    texts = [t for t in episodes if t.metrics.get(BYTE_TOKENS)]
    if texts:
        yield Fault(_KEY, path, f"{len(texts)} of {len(episodes)} episodes were played through an API, which gives "
                    "text: their ids are its bytes, no model's, and their log-probs are not known",
                    "python -m ragen.eval.to_sft makes supervised data of them")  # fmt: skip
        return
    silent = [t for t in episodes if not t.log_probs[t.policy_mask].any()]
    if silent:
        yield Fault(_KEY, path, f"{len(silent)} of {len(episodes)} episodes have no log-probs: a script "
                    "played them, or a greedy sampler", "record a model that samples")  # fmt: skip
    longest = max(int((t.turn_ends() + 1 - t.context_starts).max()) for t in episodes)
    if longest > cfg.actor_rollout_ref.rollout.max_model_len:
        yield Fault("actor_rollout_ref.rollout.max_model_len", cfg.actor_rollout_ref.rollout.max_model_len,
                    f"a recorded reply ends {longest} tokens after its context began",
                    f"set it to {longest} or more")  # fmt: skip
    first = resolve_seed(cfg.seed)["val"]
    panel = range(first, first + cfg.es_manager.val.env_groups * cfg.trainer.validation_steps)
    judged = {t.seed for t in episodes if t.seed in panel}
    if judged:
        yield Fault(_KEY, path, f"{len(judged)} recorded levels are those that the run is judged by",
                    "name the folder of trainer.rollout_data_dir, not that of the validation")  # fmt: skip
    vocabulary = ModelFacts.of(cfg).vocabulary
    greatest = int(max(t.token_ids.max() for t in episodes))
    if vocabulary is not None and greatest >= vocabulary:
        yield Fault(_KEY, path, f"token id {greatest} is none of the {vocabulary} of {cfg.model_path}",
                    "train the model that was recorded")  # fmt: skip
    elif (tokenizer := _tokenizer(cfg)) is not None and (other := _other_text(groups, tokenizer)):
        yield Fault(_KEY, path, f"{other}: another tokenizer wrote it than that of {cfg.model_path}",
                    "train the model that was recorded")  # fmt: skip


def cautions(cfg: DictConfig) -> list[str]:
    """What differs between the run that was recorded and this one, where training is still right; one line each."""
    path = Path(absolute(cfg.offline.path))
    lines = []
    config = _beside(path, "config.yaml")
    if config is None:
        lines.append("no config.yaml near the recording: its model is not known")
    elif (model := OmegaConf.load(config).get("model_path")) != cfg.model_path:
        lines.append(f"{model} was recorded, {cfg.model_path} is trained")
    prompts, tokenizer = _beside(path, PROMPTS_FILE), _tokenizer(cfg)
    if prompts is not None and tokenizer is not None:
        then = json.loads(prompts.read_text(encoding="utf-8"))
        now = json.loads(json.dumps(_prompts(cfg, tokenizer), default=str))
        if then.pop("prompt_hash") != prompt_hash(now) and (keys := _differences(then, now)):
            lines.append(f"the recording's prompts are others: {', '.join(keys)}")
    return lines


def _beside(path: Path, name: str) -> Path | None:
    """The file `name` in the folder `path`, or in one of two above."""
    folders = ([path] if path.is_dir() else []) + list(path.parents)
    return next((folder / name for folder in folders[:3] if (folder / name).is_file()), None)


@functools.lru_cache(maxsize=1)
def _load(model_path: str) -> Any:
    try:
        return load_tokenizer(str(local_folder(model_path) or model_path), Path(model_path))
    except TokenizerNotFound:
        return None


def _tokenizer(cfg: DictConfig) -> Any:
    """The model's tokenizer where it is on this machine."""
    here = cfg.model_path == "tiny" or ModelFacts.of(cfg).vocabulary is not None
    return _load(str(cfg.model_path)) if here else None


def _other_text(groups: tuple[tuple[Trajectory, ...], ...], tokenizer: Any) -> str:
    """The first reply whose tokens say something else now than when they were recorded; empty: none does."""
    for group in islice(groups, _DECODED):
        for t in group:
            for number, turn in enumerate(t.turns):
                ids = t.token_ids[t.policy_mask & (t.turn_ids == number)]
                text = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
                if text.split() != turn.reply.split():
                    return f"{t.tag} seed {t.seed} replied {turn.reply[:40]!r}, and its tokens say {text[:40]!r}"
    return ""


def _prompts(cfg: DictConfig, tokenizer: Any) -> dict[str, Any]:
    from ragen.env.registry import load_specs
    from ragen.llm_agent.ctx_manager import ContextManager
    from ragen.trainer.settings import composed_context_config

    tags = {tag for side in ("train", "val") for tag in cfg.es_manager[side].env_configs.tags}
    entries = OmegaConf.to_container(cfg.custom_envs, resolve=True)
    return prompt_settings(
        ContextManager(tokenizer, composed_context_config(cfg)), load_specs({tag: entries[tag] for tag in tags})
    )


def _differences(then: Any, now: Any, at: str = "") -> list[str]:
    """Names of what differs, in dots; what only one of the two has (a setting of another release) is no difference."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        below = ((then[key], now[key], f"{at}.{key}" if at else key) for key in sorted(then.keys() & now.keys()))
        return [name for before, after, where in below for name in _differences(before, after, where)]
    return [] if then == now else [at]
