"""Reads the node `config.ragen`, which the hand-over resolved, into the settings that the three modules take."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from ragen.llm_agent.ctx_manager import ContextConfig


def context_config(own: DictConfig) -> ContextConfig:
    """`ContextConfig` of `config.ragen`."""
    proxy: dict[str, Any] = OmegaConf.to_container(own.agent_proxy, resolve=True)
    return ContextConfig(
        max_model_len=own.max_model_len,
        response_length=own.response_length,
        max_turn=proxy["max_turn"],
        max_actions_per_turn=proxy["max_actions_per_turn"],
        action_sep=proxy["action_sep"],
        enable_think=proxy["enable_think"],
        use_turn_scores=proxy["use_turn_scores"],
        system_prompt=proxy["system_prompt"] or "",
        format_reminder=proxy["format_reminder"],
        stop=tuple(proxy["stop"] or ()),
        parser=proxy["parser"],
        chat_template_kwargs=proxy["chat_template_kwargs"] or {},
        enable_response_mask=own.enable_response_mask,
    )


def train_sampling(config: DictConfig) -> dict[str, Any]:
    """temperature, top_p, top_k of training rollouts."""
    rollout = config.actor_rollout_ref.rollout
    return {"temperature": float(rollout.temperature), "top_p": float(rollout.top_p), "top_k": int(rollout.top_k)}


def val_sampling(config: DictConfig) -> dict[str, Any]:
    """temperature, top_p, top_k of validation; `do_sample: False` is greedy."""
    own = config.ragen.val_sampling
    temperature = float(own.temperature) if own.do_sample else 0.0
    return {"temperature": temperature, "top_p": float(own.top_p), "top_k": int(own.top_k)}
