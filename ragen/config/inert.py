"""veRL's keys that nothing reads on RAGEN's path. Setting one away from its default is a fault, not a silent no-op.

`readers` names the files of veRL, below its package, where the key's last part may still appear: code that RAGEN never
runs, because its own dataset, rollout manager and environments' rewards stand in their place. A test searches the
installed veRL for every other reader, so the table fails when a release starts to read a key.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["INERT", "Inert"]

_DATASET = ("utils/dataset/",)
_AGENT_LOOP = ("experimental/agent_loop/", "trainer/ppo/v1/agent_loop_tq.py", "workers/rollout/schemas.py", "tools/")
_REWARD = ("experimental/reward_loop/", "trainer/ppo/reward.py", "workers/reward_manager/")


@dataclass(frozen=True)
class Inert:
    #: What to set instead; empty where there is nothing.
    instead: str = ""
    #: Files or folders of veRL that read the key and are not on our path.
    readers: tuple[str, ...] = ()
    #: The regular expression that a reader would match; by default the key's last part as a whole word.
    pattern: str | None = None


_LOOP = Inert("the rollout is RAGEN's agent proxy: see agent_proxy.*", _AGENT_LOOP)
_ROWS = Inert("rows are environment groups: see es_manager.*", _DATASET)
_PATH = Inert("the reward comes from the environment, and from reward.path", _REWARD)

INERT: dict[str, Inert] = {
    # the optimiser and the engine read the keys named instead
    "actor_rollout_ref.actor.grad_clip": Inert("actor_rollout_ref.actor.optim.clip_grad"),
    "critic.grad_clip": Inert("critic.optim.clip_grad"),
    "actor_rollout_ref.actor.use_torch_compile": Inert(
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile", pattern=r"actor(_config)?\.use_torch_compile"
    ),
    "actor_rollout_ref.ref.use_torch_compile": Inert(
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile", pattern=r"ref(_config)?\.use_torch_compile"
    ),
    "actor_rollout_ref.actor.fsdp_config.dtype": Inert(
        "actor_rollout_ref.actor.fsdp_config.mixed_precision", ("workers/engine/megatron/",), r"engine_config\.dtype"
    ),
    "actor_rollout_ref.ref.fsdp_config.dtype": Inert(
        "actor_rollout_ref.ref.fsdp_config.mixed_precision", ("workers/engine/megatron/",), r"engine_config\.dtype"
    ),
    "critic.fsdp.dtype": Inert("critic.fsdp.mixed_precision", ("workers/engine/megatron/",), r"engine_config\.dtype"),
    "actor_rollout_ref.actor.freeze_vision_tower": Inert(),
    "critic.ulysses_sequence_parallel_size": Inert(
        "critic.fsdp.ulysses_sequence_parallel_size", pattern=r"critic(_cfg|_config)?\.ulysses_sequence_parallel_size"
    ),
    "critic.forward_max_token_len_per_gpu": Inert("critic.ppo_max_token_len_per_gpu"),
    "critic.forward_micro_batch_size": Inert("critic.ppo_micro_batch_size_per_gpu"),
    "critic.forward_micro_batch_size_per_gpu": Inert("critic.ppo_micro_batch_size_per_gpu"),
    "actor_rollout_ref.nccl_timeout": Inert(),
    # the rollout: RAGEN's manager in place of veRL's agent loops
    "actor_rollout_ref.rollout.over_sample_rate": Inert("agent_proxy.*"),
    "actor_rollout_ref.rollout.multi_stage_wake_up": Inert(),
    "actor_rollout_ref.rollout.do_sample": Inert(
        "actor_rollout_ref.rollout.temperature", pattern=r"rollout(_config)?\.do_sample"
    ),
    "actor_rollout_ref.rollout.agent.num_workers": Inert(
        "one proxy plays all episodes", _AGENT_LOOP, r"agent\.num_workers"
    ),
    "actor_rollout_ref.rollout.agent.default_agent_loop": _LOOP,
    "actor_rollout_ref.rollout.agent.agent_loop_config_path": _LOOP,
    "actor_rollout_ref.rollout.multi_turn.enable": Inert("agent_proxy.max_turn", _AGENT_LOOP, r"multi_turn\.enable"),
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": Inert("agent_proxy.max_turn", _AGENT_LOOP),
    "actor_rollout_ref.rollout.multi_turn.max_user_turns": Inert("agent_proxy.max_turn", _AGENT_LOOP),
    "actor_rollout_ref.rollout.multi_turn.max_parallel_calls": _LOOP,
    "actor_rollout_ref.rollout.multi_turn.max_tool_response_length": _LOOP,
    "actor_rollout_ref.rollout.multi_turn.tool_response_truncate_side": _LOOP,
    "actor_rollout_ref.rollout.multi_turn.use_inference_chat_template": _LOOP,
    "actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode": _LOOP,
    "actor_rollout_ref.rollout.multi_turn.num_repeat_rollouts": _LOOP,
    "actor_rollout_ref.rollout.trace.token2text": Inert(
        "trainer.rollout_data_dir", (*_AGENT_LOOP, "utils/rollout_trace.py")
    ),
    "actor_rollout_ref.rollout.trace.max_samples_per_step_per_worker": Inert(
        "trainer.rollout_data_dir", (*_AGENT_LOOP, "utils/rollout_trace.py")
    ),
    # the data: environment groups in place of files
    "data.prompt_key": _ROWS,
    "data.image_key": _ROWS,
    "data.video_key": _ROWS,
    "data.audio_key": _ROWS,
    "data.reward_fn_key": Inert("", (*_DATASET, *_REWARD)),
    "data.return_raw_input_ids": _ROWS,
    "data.return_raw_chat": _ROWS,
    "data.return_full_prompt": _ROWS,
    "data.return_multi_modal_inputs": _ROWS,
    "data.filter_overlong_prompts": Inert("actor_rollout_ref.rollout.max_model_len", (*_DATASET, "utils/tokenizer/")),
    "data.filter_overlong_prompts_workers": _ROWS,
    "data.truncation": Inert(
        "an episode that would not fit ends as truncated",
        (*_DATASET, *_AGENT_LOOP),
        r"""config[.(].{0,8}truncation\b""",
    ),
    # rewards: the environment's
    "reward.reward_manager.name": Inert(_PATH.instead, _REWARD, r"reward_manager\.name"),
    "reward.reward_manager.source": Inert(_PATH.instead, _REWARD, r"reward_manager\.source"),
    "reward.sandbox_fusion.url": Inert(_PATH.instead, _REWARD, r"sandbox_(fusion|config)\.(url|get\(.url)"),
    "reward.sandbox_fusion.max_concurrent": _PATH,
    "sandbox_fusion.url": Inert(_PATH.instead, _REWARD, r"config\.sandbox_fusion\b"),
    "sandbox_fusion.max_concurrent": _PATH,
    # algorithm
    "algorithm.use_pf_ppo": Inert(),
    "algorithm.pf_ppo.reweight_method": Inert("", ("trainer/ppo/core_algos.py",)),
    "algorithm.pf_ppo.weight_pow": Inert("", ("trainer/ppo/core_algos.py",)),
    "algorithm.filter_groups.metric": Inert(
        "actor_rollout_ref.rollout.rollout_filter_ratio",
        ("trainer/ppo/v1/trainer_base.py",),
        r"filter_groups\.get\(.metric",
    ),
    # trainer
    "trainer.balance_batch": Inert(),
    "trainer.esi_redundant_time": Inert(),
    "trainer.log_val_generations": Inert(
        "trainer.generations_to_log_to_wandb.val", ("trainer/ppo/v1/trainer_base.py",)
    ),
}
