"""The plan of a run, printed before it starts: what a step plays and trains on, and what memory each phase wants.

Figures of memory are estimates per device from the model's shape: weights, optimiser state and cache are near exact,
activations are within a factor of about two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil
from omegaconf import DictConfig

from ragen.config.devices import cuda_devices
from ragen.config.model_facts import ModelFacts
from ragen.config.offline import cautions, share
from ragen.config.to_verl import group_filter, lags, recorded, resolve_n_groups, resolve_seed
from ragen.trainer.advantages.table import VALUE_ESTIMATORS, estimator_name

__all__ = ["Phase", "memory", "plan"]

_GIB = 2**30


@dataclass(frozen=True)
class Phase:
    """Memory that one phase wants on each device, in bytes."""

    name: str
    weights: int
    state: int
    #: Of rollout: the cache. Of training: activations and logits of one micro-batch.
    working: int

    @property
    def total(self) -> int:
        return self.weights + self.state + self.working


def plan(cfg: DictConfig, facts: ModelFacts, *, run: str | None = None) -> str:
    """The plan as aligned text, without a line break at its end."""
    rows = [("run", run)] if run else []
    rows += [
        ("model", _model(cfg, facts)),
        ("play", _play(cfg)),
        ("train", _train(cfg)),
        *_lag(cfg),
        ("tokens", _tokens(cfg, facts)),
        ("judge", _judge(cfg)),
        ("seeds", "training groups from {train}, validation groups from {val}".format(**resolve_seed(cfg.seed))),
    ]
    rows += [("" if i else "memory", line) for i, line in enumerate(_memory_lines(cfg, facts))]
    return "\n".join(f"{name:<8}{text}".rstrip() for name, text in rows)


def memory(cfg: DictConfig, facts: ModelFacts) -> list[Phase]:
    """Estimates for rollout, actor, critic and reference, those that the run has; empty for a model of unknown size."""
    if not facts.parameters:
        return []
    actor, critic, rollout = cfg.actor_rollout_ref.actor, cfg.critic, cfg.actor_rollout_ref.rollout
    world = cfg.trainer.n_gpus_per_node * cfg.trainer.nnodes
    size = facts.parameters
    engine_bytes = 4 if rollout.dtype == "float32" else 2
    phases = [
        Phase(
            "rollout", size * engine_bytes // rollout.tensor_model_parallel_size, 0, _cache(cfg, facts, engine_bytes)
        ),
        _training("actor", cfg, facts, actor, actor.fsdp_config, world, logits=True),
    ]
    if critic.enable or (critic.enable is None and cfg.algorithm.adv_estimator in VALUE_ESTIMATORS):
        phases.append(_training("critic", cfg, facts, critic, critic.fsdp, world, logits=False))
    if (actor.use_kl_loss or cfg.algorithm.use_kl_in_reward) and not cfg.actor_rollout_ref.model.lora_rank:
        phases.append(Phase("reference", 4 * size // world, 0, 0))
    return phases


def _training(
    name: str, cfg: DictConfig, facts: ModelFacts, node: DictConfig, engine: DictConfig, world: int, *, logits: bool
) -> Phase:
    assert facts.parameters is not None
    full = cfg.actor_rollout_ref.model.lora_rank == 0 if name == "actor" else cfg.critic.model.lora_rank == 0
    weights = 4 * facts.parameters // world
    # gradient and two Adam moments in 32 bits; adapters are a few per cent of the weights
    state = 12 * facts.parameters // world if full else 12 * facts.parameters // 50 // world
    if engine.param_offload:
        weights = 0
    if engine.optimizer_offload:
        state = 4 * facts.parameters // world if full else 0
    tokens = node.ppo_max_token_len_per_gpu if node.use_dynamic_bsz else (
        node.ppo_micro_batch_size_per_gpu * cfg.actor_rollout_ref.rollout.max_model_len
    )  # fmt: skip
    width = 4 if engine.mixed_precision and engine.mixed_precision.param_dtype == "fp32" else 2
    model = cfg.actor_rollout_ref.model if name == "actor" else cfg.critic.model
    per_layer = 1 if model.enable_gradient_checkpointing else 16
    activations = tokens * (facts.hidden or 0) * (facts.layers or 0) * width * per_layer
    if logits:
        activations += 2 * tokens * (facts.vocabulary or 0) * 4
    return Phase(name, weights, state, activations)


def _cache(cfg: DictConfig, facts: ModelFacts, element: int) -> int:
    """Cache that all episodes in flight on one replica want; the engine queues what does not fit."""
    train, rollout = cfg.es_manager.train, cfg.actor_rollout_ref.rollout
    replicas = max(1, cfg.trainer.n_gpus_per_node * cfg.trainer.nnodes // rollout.tensor_model_parallel_size)
    episodes = min(rollout.max_num_seqs, -(-train.env_groups * train.group_size // replicas))
    tokens = episodes * rollout.max_model_len
    return (facts.cache_per_token or 0) * tokens * element // rollout.tensor_model_parallel_size


def _memory_lines(cfg: DictConfig, facts: ModelFacts) -> list[str]:
    phases = memory(cfg, facts)
    if not phases:
        return [f"unknown: the shape of {cfg.model_path} is not at hand"]
    has, what = _device_memory(cfg)
    lines = [f"per device, GiB{'':>6}weights   state  working   total"]
    for phase in phases:
        figures = (phase.weights, phase.state, phase.working, phase.total)
        lines.append(f"  {phase.name:<17}" + "".join(f"{value / _GIB:9.2f}" for value in figures))
    training = [phase for phase in phases if phase.name != "rollout"]
    resident = sum(p.weights + p.state for p in training) + max(p.working for p in training)
    if has:
        verdict = "" if resident <= has else "  more than there is: smaller micro-batches, offloading, or another model"
        lines.append(f"  training together{resident / _GIB:9.2f} of {has / _GIB:.1f} {what}{verdict}")
    return lines


def _device_memory(cfg: DictConfig) -> tuple[int | None, str]:
    if cfg.trainer.device == "cpu":
        return psutil.virtual_memory().total // cfg.trainer.n_gpus_per_node, "(this machine's memory)"
    visible = cfg.system.CUDA_VISIBLE_DEVICES
    devices = cuda_devices(None if visible is None else str(visible))
    return (devices[0].memory, f"({devices[0].name})") if devices else (None, "")


def _model(cfg: DictConfig, facts: ModelFacts) -> str:
    size = f", {_count(facts.parameters)} parameters" if facts.parameters else ""
    lora = f", LoRA of rank {cfg.lora.rank}" if cfg.lora.rank else ""
    trainer = cfg.trainer
    devices = trainer.n_gpus_per_node * trainer.nnodes
    return f"{cfg.model_path}{size}{lora}, on {devices} x {trainer.device}"


def _play(cfg: DictConfig) -> str:
    train = cfg.es_manager.train
    proxy = cfg.agent_proxy
    return (
        f"{train.env_groups} groups x {train.group_size} episodes = {train.env_groups * train.group_size} a step"
        f" ({_tags(train)}), {proxy.max_turn} turns of up to {proxy.max_actions_per_turn} actions"
    )


def _train(cfg: DictConfig) -> str:
    train, groups = cfg.es_manager.train, group_filter(cfg).fixed_count(cfg.es_manager.train.env_groups)
    kept = (train.env_groups if groups is None else groups) * train.group_size
    most = "up to " if groups is None else ""
    size, epochs = cfg.actor_rollout_ref.actor.ppo_mini_batch_size, cfg.actor_rollout_ref.actor.ppo_epochs
    rounds = -(-kept // size)
    updates = f"{rounds} mini-batches of {size}"
    updates += f" x {epochs} epochs = {rounds * epochs} updates" if epochs > 1 else ""
    if cfg.agent_proxy.context_window_mode != "full":
        updates = f"mini-batches of {size} samples, 1 to {cfg.agent_proxy.max_turn} of each episode"
    estimator = estimator_name(cfg.algorithm.adv_estimator, cfg.algorithm.bi_level_gae)
    return f"{estimator} on {most}{kept} episodes a step, {updates}, {cfg.trainer.total_training_steps} steps"


def _lag(cfg: DictConfig) -> list[tuple[str, str]]:
    """How far rollouts lag behind the update, and what makes the ratio of the two policies wrong."""
    rollout, v1, correction = cfg.actor_rollout_ref.rollout, cfg.trainer.v1, cfg.algorithm.rollout_correction
    rows = []
    if lags(cfg):
        weights = "token" if correction.rollout_is == "auto" else correction.rollout_is
        weighed = f"weights per {weights} cut at {correction.rollout_is_threshold}" if weights else "no weights"
        mode = v1.trainer_mode
        ahead = (
            "" if mode == "ragen_sync" else f"{v1[mode.removeprefix('ragen_')].num_warmup_batches:g} batches ahead, "
        )
        rows.append(("lag", f"{mode}: {ahead}{weighed}"))
    if recorded(cfg):
        rows.append(("offline", share(cfg)))
        rows += [("caution", line) for line in cautions(cfg)]
    if rollout.top_p < 1 or rollout.top_k > 0:
        rows.append(
            (
                "caution",
                f"top_p={rollout.top_p:g}, top_k={rollout.top_k}: the sampler's log-probs are of the tokens left over, "
                "the actor's of all, so that ratios between them, and with them the update, are biased",
            )
        )
    return rows


def _tokens(cfg: DictConfig, facts: ModelFacts) -> str:
    train, rollout = cfg.es_manager.train, cfg.actor_rollout_ref.rollout
    most = train.env_groups * train.group_size * rollout.max_model_len
    replies = cfg.agent_proxy.max_turn * rollout.response_length
    text = f"at most {_count(most)} a step; an episode has {rollout.max_model_len}, its replies up to {replies}"
    if facts.first_prompt_tokens:
        text += f", its first prompt about {facts.first_prompt_tokens} or more"
        if facts.first_prompt_tokens + replies > rollout.max_model_len:
            text += ": long episodes will be cut short"
    return text


def _judge(cfg: DictConfig) -> str:
    val, trainer = cfg.es_manager.val, cfg.trainer
    when = ["before"] if trainer.val_before_train else []
    if trainer.test_freq and trainer.test_freq > 0:
        every = trainer.test_freq < trainer.total_training_steps
        when.append(f"every {trainer.test_freq} steps and at the end" if every else "after")
    episodes = val.env_groups * val.group_size * trainer.validation_steps
    return f"{episodes} episodes ({_tags(val)}), {' and '.join(when)}" if when else "never"


def _tags(part: Any) -> str:
    groups = part.env_configs.n_groups
    counts = resolve_n_groups(part.env_groups, list(part.env_configs.tags), None if groups is None else list(groups))
    return ", ".join(f"{tag} {n}" for tag, n in zip(part.env_configs.tags, counts, strict=True))


def _count(number: int | None) -> str:
    value = float(number or 0)
    for unit in ("", "k", "M", "B"):
        if value < 1000:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}T"
