"""Reads a config, composed or handed over (its node `ragen`), into the settings that the three modules take."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from ragen.llm_agent.ctx_manager import ContextConfig


def context_config(own: DictConfig) -> ContextConfig:
    """`ContextConfig` of `config.ragen`."""
    plain: dict[str, Any] = OmegaConf.to_container(own, resolve=True)  # type: ignore[assignment]
    return ContextConfig.from_nodes(plain["agent_proxy"], plain)


def composed_context_config(cfg: DictConfig) -> ContextConfig:
    """`ContextConfig` of a composed config, before the hand-over."""
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=False)  # type: ignore[assignment]
    return ContextConfig.from_nodes(plain["agent_proxy"], plain["actor_rollout_ref"]["rollout"], plain)


def train_sampling(config: DictConfig) -> dict[str, Any]:
    """temperature, top_p, top_k of training rollouts."""
    rollout = config.actor_rollout_ref.rollout
    return {"temperature": float(rollout.temperature), "top_p": float(rollout.top_p), "top_k": int(rollout.top_k)}


def val_sampling(config: DictConfig) -> dict[str, Any]:
    """temperature, top_p, top_k of validation; `do_sample: False` is greedy."""
    own = config.ragen.val_sampling
    temperature = float(own.temperature) if own.do_sample else 0.0
    return {"temperature": temperature, "top_p": float(own.top_p), "top_k": int(own.top_k)}
