"""The hand-over: a RAGEN config in, veRL's config out.

veRL's dataclasses refuse keys that they do not know. RAGEN's own keys are therefore taken out of veRL's nodes and
gathered, resolved, under the single node `ragen`, which veRL passes on to the trainer untouched. Sizes that mean
something else to veRL are converted here and nowhere else.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from ragen.checkpoint import actor_folder
from ragen.trainer.advantages.table import GROUP_ESTIMATORS, VALUE_ESTIMATORS
from ragen.trainer.rollout_filter import GroupFilter

__all__ = ["group_filter", "resolve_attention", "resolve_model_path", "resolve_n_groups", "resolve_seed", "to_verl"]

FIRST_TRAIN_SEED = 10_000
VAL_SEED = 123
#: Training seeds of two run seeds lie this far apart; no run plays more groups.
RUN_SEED_STRIDE = 1_000_000

#: RAGEN's keys inside veRL's nodes.
_OWN_ACTOR = ("use_ref", "filter_loss_scaling")
_OWN_ALGORITHM = ("high_level_gamma", "bi_level_gae", "gigpo_step_weight", "overlong_share", "overlong_penalty",
                  "zero_task_advantage", "soft_advantage_reweight", "shuffle_group_rewards")  # fmt: skip
#: veRL's keys that the advantages read as well.
_ADVANTAGE = ("adv_estimator", "gamma", "lam", "norm_adv_by_std_in_grpo")
_OWN_ADVANTAGE = tuple(key for key in _OWN_ALGORITHM if key != "shuffle_group_rewards")
_OWN_TRAINER = ("output_dir", "validation_steps", "generations_to_log_to_wandb", "keep_best")
_OWN_REWARD = ("path", "name", "kwargs", "timeout_s", "mode", "in_validation")
#: RAGEN's keys at the top.
_OWN_TOP = (
    "system", "seed", "micro_batch_size_per_gpu", "ppo_mini_batch_size", "model_path", "attn_implementation",
    "enable_response_mask", "grpo_advantage_length_weight", "lora", "agent_proxy", "es_manager",
    "collapse_detection", "custom_envs", "offline",
)  # fmt: skip
#: veRL's own former places of `reward`, which its start-up takes out as well.
_LEGACY = ("reward_model", "custom_reward_function", "sandbox_fusion")
_FILTER_PREFIX = "rollout_filter_"


def to_verl(cfg: DictConfig, *, config_name: str = "base", run_dir: str | Path | None = None) -> DictConfig:
    """veRL's configuration for a checked RAGEN config, with everything of ours under `ragen`.

    `cfg` is left as it is. The result is resolved throughout; what veRL leaves open (`???`) stays open.
    run_dir: the run's folder; checkpoints go below it. None (tests, benches): `trainer.default_local_dir` stays.
    """
    cfg = copy.deepcopy(cfg)
    cfg.model_path = resolve_model_path(cfg.model_path)
    cfg.attn_implementation = resolve_attention(cfg.attn_implementation, cfg.trainer.device)
    seed = resolve_seed(cfg.seed)
    out: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=False)  # type: ignore[assignment]
    own = _own(out)
    for key in (*_OWN_TOP, *_LEGACY):
        out.pop(key)
    _set_sizes(out, own)
    _set_seeds(out, seed["train"])
    _set_trainer(out, own, run_dir)
    own["config_name"] = config_name
    own["seed"] = {"train": seed["train"], "val": seed["val"]}
    own["run_dir"] = str(run_dir) if run_dir is not None else None
    own["model_path"] = cfg.model_path
    out["ragen"] = own
    return OmegaConf.create(out)


def resolve_seed(seed: Any) -> dict[str, int]:
    """`seed` as typed → {run, train, val}.

    A number k is a run seed. A mapping states both environment seeds; its run seed is k where `train` is the seed
    that k stands for, else `train` itself.
    """
    if isinstance(seed, int):
        return {"run": seed, "train": FIRST_TRAIN_SEED + RUN_SEED_STRIDE * seed, "val": VAL_SEED}
    train, val = int(seed["train"]), int(seed["val"])
    k, rest = divmod(train - FIRST_TRAIN_SEED, RUN_SEED_STRIDE)
    return {"run": k if rest == 0 and k >= 0 and val == VAL_SEED else train, "train": train, "val": val}


def resolve_n_groups(env_groups: int, tags: list[str], n_groups: list[int] | None) -> list[int]:
    """Groups of each tag; None is an equal split.

    Raises ValueError where the split is uneven, the lengths differ or the sum is not `env_groups`.
    """
    if n_groups is None:
        if env_groups % len(tags):
            raise ValueError(f"{env_groups} groups cannot be split equally over {len(tags)} tags")
        return [env_groups // len(tags)] * len(tags)
    if len(n_groups) != len(tags):
        raise ValueError(f"{len(n_groups)} numbers for {len(tags)} tags")
    if sum(n_groups) != env_groups:
        raise ValueError(f"adds up to {sum(n_groups)}, not to env_groups={env_groups}")
    return list(n_groups)


def group_filter(cfg: DictConfig) -> GroupFilter:
    """The filter that the keys `rollout_filter_*` ask for. Raises ValueError as `GroupFilter.from_keys` does."""
    return GroupFilter.from_keys(_filter_keys(cfg.actor_rollout_ref.rollout))


def max_batches(cfg: Mapping[str, Any]) -> int:
    """Batches of env_groups that a step may play to fill one: 1 without refills (`algorithm.filter_groups`)."""
    refill = cfg["algorithm"]["filter_groups"]
    return int(refill["max_num_gen_batches"]) if refill["enable"] else 1


def lags(cfg: Mapping[str, Any]) -> bool:
    """Whether what is trained on was sampled by an older policy than the one that a step begins with."""
    return cfg["trainer"]["v1"]["trainer_mode"] != "ragen_sync" or recorded(cfg)


def recorded(cfg: Mapping[str, Any]) -> bool:
    """Whether a part of what is trained on comes from a recording."""
    return cfg["offline"]["path"] is not None and cfg["offline"]["ratio"] > 0


def groups_played(cfg: Mapping[str, Any]) -> int:
    """The most groups that a run plays, each with a seed of its own."""
    v1 = cfg["trainer"]["v1"]
    steps = cfg["trainer"]["total_training_steps"] * max(1, max_batches(cfg))
    if v1["trainer_mode"] == "ragen_sync":
        return steps * cfg["es_manager"]["train"]["env_groups"]
    ahead = math.ceil(v1[v1["trainer_mode"].removeprefix("ragen_")]["num_warmup_batches"])
    # as many again where every group were dropped as stale once
    return 2 * (steps + ahead) * cfg["es_manager"]["train"]["env_groups"]


def resolve_model_path(model_path: str) -> str:
    """A folder or hub name; the names of the models that the project makes itself become their folder, and a training
    checkpoint the folder that it is exported to."""
    if model_path == "tiny":
        from ragen.tiny_model import path  # builds the model on first use: minutes

        return str(path())
    if model_path == "smollm":
        from ragen.smollm import path as smollm_path

        return str(smollm_path())
    if actor_folder(model_path) is not None:
        from ragen.export import cached_export

        return str(cached_export(model_path))
    if model_path.startswith(("~", "./", "../")):
        return str(Path(model_path).expanduser().resolve())
    return model_path


def resolve_attention(attn_implementation: str, device: str) -> str:
    """`auto` → flash_attention_2 where the package is there and the device can use it, else sdpa."""
    if attn_implementation != "auto":
        return attn_implementation
    return "flash_attention_2" if device == "cuda" and importlib.util.find_spec("flash_attn") else "sdpa"


def _filter_keys(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """The rollout filter's keys, without their prefix."""
    prefix = _FILTER_PREFIX
    return {str(key).removeprefix(prefix): value for key, value in rollout.items() if str(key).startswith(prefix)}


def _own(plain: dict[str, Any]) -> dict[str, Any]:
    """RAGEN's node, except for what only the hand-over knows."""
    rollout, trainer = plain["actor_rollout_ref"]["rollout"], plain["trainer"]
    es_manager = plain["es_manager"]
    for side in ("train", "val"):
        part = es_manager[side]
        envs = part["env_configs"]
        envs["n_groups"] = resolve_n_groups(part["env_groups"], envs["tags"], envs["n_groups"])
    val = rollout["val_kwargs"]
    proxy = plain["agent_proxy"]
    return {
        "custom_envs": plain["custom_envs"],
        "es_manager": es_manager,
        "agent_proxy": proxy,
        "reward": {**{key: plain["reward"][key] for key in _OWN_REWARD}, "path": _reward_path(plain["reward"]["path"])},
        "offline": {**plain["offline"], "path": absolute(plain["offline"]["path"])},
        "shuffle_group_rewards": plain["algorithm"]["shuffle_group_rewards"],
        "advantages": {
            **{key: plain["algorithm"][key] for key in (*_ADVANTAGE, *_OWN_ADVANTAGE)},
            **proxy["reward_normalization"],
            "grpo_advantage_length_weight": plain["grpo_advantage_length_weight"],
            "filter_loss_scaling": plain["actor_rollout_ref"]["actor"]["filter_loss_scaling"],
        },
        "enable_response_mask": plain["enable_response_mask"],
        "response_length": rollout["response_length"],
        "max_model_len": rollout["max_model_len"],
        "rollout_filter": _filter_keys(rollout),
        "val_sampling": {key: val[key] for key in ("do_sample", "temperature", "top_p", "top_k")},
        "generation_timeout_s": proxy["generation_timeout_s"],
        "episode_timeout_s": proxy["episode_timeout_s"],
        "keep_best": _keep_best(plain),
        "collapse_detection": plain["collapse_detection"],
        "validation_steps": trainer["validation_steps"],
        "generations_to_log": trainer["generations_to_log_to_wandb"],
        "cuda_visible_devices": plain["system"]["CUDA_VISIBLE_DEVICES"],
    }


def _keep_best(plain: Mapping[str, Any]) -> str | None:
    """A run that the collapse watch may stop always keeps its best checkpoint."""
    name = plain["trainer"]["keep_best"]
    if name is None and plain["collapse_detection"]["action"] == "stop":
        return f"val-env/{plain['es_manager']['val']['env_configs']['tags'][0]}/success"
    return name


def absolute(path: str | None) -> str | None:
    """A path from wherever the workers run."""
    return None if path is None else str(Path(path).expanduser().resolve())


def _reward_path(path: str | None) -> str | None:
    """A file is found from wherever the workers run."""
    return str(Path(path).expanduser().resolve()) if path and path.endswith(".py") else path


def _set_sizes(out: dict[str, Any], own: dict[str, Any]) -> None:
    train, val = own["es_manager"]["train"], own["es_manager"]["val"]
    data, actor, critic = out["data"], out["actor_rollout_ref"]["actor"], out["critic"]
    rollout = out["actor_rollout_ref"]["rollout"]
    group_size = train["group_size"]

    data["train_batch_size"] = train["env_groups"]
    # the dataset is only a length: the run's rows, and the panel's
    data["train_max_samples"] = groups_played({**out, "es_manager": own["es_manager"]})
    if max_batches(out) > 1 or out["trainer"]["v1"]["trainer_mode"] != "ragen_sync":
        data["gen_batch_size"] = 1  # refills are any number of groups
    data["val_max_samples"] = val["env_groups"]
    rollout["n"] = group_size
    rollout["val_kwargs"]["n"] = val["group_size"]
    for node in (actor, out["actor_rollout_ref"]["ref"], critic):
        node["rollout_n"] = group_size
    # veRL counts mini-batches in groups and multiplies by the group size itself
    actor["ppo_mini_batch_size"] //= group_size
    critic["ppo_mini_batch_size"] //= group_size

    # veRL's limits are per request; every request of ours states its own, so these only have to add up
    data["max_response_length"] = rollout["response_length"]
    data["max_prompt_length"] = rollout["prompt_length"] = rollout["max_model_len"] - rollout["response_length"]

    # veRL's trainer hands the critic's engine a token budget only: without these it packs whatever we say
    critic["fsdp"]["use_dynamic_bsz"] = critic["use_dynamic_bsz"]
    critic["fsdp"]["micro_batch_size_per_gpu"] = critic["ppo_micro_batch_size_per_gpu"]
    critic["fsdp"]["infer_micro_batch_size_per_gpu"] = critic["ppo_micro_batch_size_per_gpu"]
    critic["ppo_infer_max_token_len_per_gpu"] = critic["ppo_max_token_len_per_gpu"]

    # veRL knows one estimator that needs a critic
    if critic["enable"] is None and out["algorithm"]["adv_estimator"] in VALUE_ESTIMATORS:
        critic["enable"] = True

    compares = out["algorithm"]["adv_estimator"] in GROUP_ESTIMATORS and group_size > 1
    out["trainer"]["v1"]["sampler"]["sampler_kwargs"] = {**own["rollout_filter"], "min_members": 2 if compares else 1,
                                                        "max_batches": max_batches(out)}  # fmt: skip
    correction = out["algorithm"]["rollout_correction"]
    if correction["rollout_is"] == "auto":
        correction["rollout_is"] = (
            "token" if lags({**out, "offline": own["offline"]}) and not correction["bypass_mode"] else None
        )
    for key in [key for key in rollout if key.startswith(_FILTER_PREFIX)]:
        del rollout[key]


def _set_seeds(out: dict[str, Any], train_seed: int) -> None:
    """Every other seed follows from the run's: optimiser order, model set-up, engine."""
    names = ("actor", "critic", "actor_fsdp", "ref_fsdp", "critic_fsdp", "rollout", "data")
    drawn = np.random.SeedSequence([train_seed, 0x5EED]).generate_state(len(names))
    # vLLM adds the replica's rank, so stay well below 2**31
    seeds = {name: int(value) % 2**30 for name, value in zip(names, drawn, strict=True)}
    actor_rollout_ref, critic = out["actor_rollout_ref"], out["critic"]
    actor_rollout_ref["actor"]["data_loader_seed"] = seeds["actor"]
    actor_rollout_ref["actor"]["fsdp_config"]["seed"] = seeds["actor_fsdp"]
    actor_rollout_ref["ref"]["fsdp_config"]["seed"] = seeds["ref_fsdp"]
    actor_rollout_ref["rollout"]["seed"] = seeds["rollout"]
    critic["data_loader_seed"] = seeds["critic"]
    critic["fsdp"]["seed"] = seeds["critic_fsdp"]
    out["data"]["seed"] = seeds["data"]


def _set_trainer(out: dict[str, Any], own: dict[str, Any], run_dir: str | Path | None) -> None:
    for node, keys in (
        (out["actor_rollout_ref"]["actor"], _OWN_ACTOR),
        (out["algorithm"], _OWN_ALGORITHM),
        (out["trainer"], _OWN_TRAINER),
        (out["reward"], _OWN_REWARD),
    ):
        for key in keys:
            del node[key]
    if run_dir is not None:
        out["trainer"]["default_local_dir"] = str(Path(run_dir) / "checkpoints")
