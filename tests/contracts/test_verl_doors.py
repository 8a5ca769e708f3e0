"""Every door of veRL, TransferQueue and vLLM that this project goes through is where ``verl/README.md`` says.

A failure means that an installed package has moved one: see "Moving to the next release" there. Signatures are read
from source; only light modules are imported.
"""

import re

import pytest
import yaml

from tests.contracts.door_source import find, folder_of, parameters_of, source_of, text_of

TRAINER = "verl.trainer.ppo.v1.trainer_base"
RECEIVER = "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer"

# door -> parameters that we pass or receive, by name
SIGNATURES = {
    # start
    "verl.trainer.main_ppo:run_ppo": ["config", "task_runner_class"],
    "verl.utils.config:validate_config": ["config", "use_reference_policy", "use_critic"],
    "verl.utils.config:omega_conf_to_dataclass": ["config"],
    # trainer
    f"{TRAINER}:register_trainer": ["name"],
    f"{TRAINER}:PPOTrainer": ["config"],
    f"{TRAINER}:PPOTrainer._init_dataloader": [],
    f"{TRAINER}:PPOTrainer.prepare_step": [],
    f"{TRAINER}:PPOTrainer._step_once": ["metrics", "timing_raw", "sample_batch_size"],
    f"{TRAINER}:PPOTrainer._balance_batch": ["batch", "metrics"],
    f"{TRAINER}:PPOTrainer._get_required_batch_multiple": ["dp_size"],
    f"{TRAINER}:PPOTrainer._compute_old_log_prob": ["batch", "metrics"],
    f"{TRAINER}:PPOTrainer._compute_advantage": ["batch", "metrics"],
    f"{TRAINER}:PPOTrainer._compute_metrics": ["batch", "metrics", "timing_raw", "global_steps", "epoch"],
    f"{TRAINER}:PPOTrainer._validate": [],
    f"{TRAINER}:PPOTrainer._save_checkpoint": [],
    f"{TRAINER}:PPOTrainer._load_checkpoint": [],
    f"{TRAINER}:PPOTrainer._log_rollout_data": ["batch", "timing_raw", "rollout_data_dir"],
    f"{TRAINER}:PPOTrainer._add_prompts_to_generate": ["num_prompts"],
    f"{TRAINER}:PPOTrainer.get_llm_client": [],
    **{
        f"{TRAINER}:PPOTrainer.on_{moment}": []
        for moment in (
            "init_end",
            "train_begin",
            "train_end",
            "step_begin",
            "step_end",
            "sample_begin",
            "sample_end",
            "validate_begin",
            "validate_end",
        )
    },
    "verl.trainer.ppo.checkpoint_callback:CheckpointCallback.on_save": ["trainer", "global_step", "checkpoint_dir"],
    "verl.checkpoint_engine.base:CheckpointEngineManager.update_weights": ["global_steps"],
    "verl.checkpoint_engine.base:CheckpointEngineManager.sleep_replicas": [],
    "verl.checkpoint_engine.base:CheckpointEngineManager.wake_up_replicas": [],
    # export
    "verl.model_merger.fsdp_model_merger:merge_non_dtensor_shards": ["key", "shards"],
    "verl.model_merger.fsdp_model_merger:FSDPModelMerger.merge_and_save": [],
    "verl.model_merger.fsdp_model_merger:FSDPModelMerger._load_and_merge_state_dicts": [
        "world_size",
        "total_shards",
        "mesh_shape",
        "mesh_dim_names",
    ],
    "verl.model_merger.fsdp_model_merger:FSDPModelMerger._merge_by_placement": ["tensors", "placement"],
    "verl.model_merger.base_model_merger:BaseModelMerger.save_hf_model_and_tokenizer": ["state_dict"],
    # rollouts
    "verl.workers.rollout.llm_server:LLMServerClient.generate": [
        "request_id",
        "prompt_ids",
        "sampling_params",
        "image_data",
    ],
    "verl.workers.rollout.llm_server:LLMServerClient._vllm_request_id": ["request_id"],
    "verl.workers.rollout.llm_server:LLMServerClient._acquire_server": ["request_id"],
    "verl.workers.rollout.llm_server:FullyAsyncLLMServerClient": ["config", "load_balancer_handle"],
    "verl.workers.rollout.llm_server:LLMServerManager.get_client": ["client_cls"],
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.abort_request": ["request_id"],
    "verl.utils.tensordict_utils:list_of_dict_to_tensordict": ["list_of_dicts"],
    # replay buffer
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample": ["global_steps", "partition_id", "batch_size"],
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._sync_metadata_from_transfer_queue": [],
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._clear_groups": ["partition_id", "uids"],
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._terminal_eviction_reasons": ["global_steps", "partition_id"],
    "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync.wait_for_sampleable": [
        "global_steps",
        "partition_id",
        "target_count",
    ],
    "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync._stale_terminal_keys": ["global_steps", "partition_id"],
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._wait_for_next_poll": ["partition_id", "last_debug_time"],
    # algorithms
    "verl.trainer.ppo.core_algos:register_adv_est": ["name_or_enum"],
    "verl.trainer.ppo.core_algos:compute_gae_advantage_return": [
        "token_level_rewards",
        "values",
        "response_mask",
        "gamma",
        "lam",
    ],
    "verl.trainer.ppo.core_algos:compute_grpo_outcome_advantage": [
        "token_level_rewards",
        "response_mask",
        "index",
        "epsilon",
        "norm_adv_by_std_in_grpo",
    ],
    "verl.trainer.ppo.core_algos:compute_rloo_outcome_advantage": ["token_level_rewards", "response_mask", "index"],
    "verl.trainer.ppo.core_algos:compute_reinforce_plus_plus_outcome_advantage": [
        "token_level_rewards",
        "response_mask",
        "config",
    ],
    "verl.trainer.ppo.core_algos:compute_reinforce_plus_plus_baseline_outcome_advantage": [
        "token_level_rewards",
        "response_mask",
        "index",
    ],
    "verl.utils.torch_functional:masked_whiten": ["values", "mask"],
    "verl.workers.utils.padding:response_to_nested": ["tensor", "response_mask"],
    "verl.trainer.ppo.rollout_corr_helper:compute_rollout_correction_and_add_to_batch": [
        "batch",
        "rollout_corr_config",
    ],
    "verl.trainer.ppo.v1.utils:compute_advantage_for_multi_trajectories": ["data", "batch_keys", "adv_estimator"],
    "verl.trainer.ppo.ray_trainer:apply_kl_penalty": ["data", "kl_ctrl", "kl_penalty"],
    "verl.trainer.ppo.padding_utils:upsample_batch_to_divisible_size": ["batch", "batch_multiple", "eos_token_id"],
    # TransferQueue
    "transfer_queue.interface:init": ["conf"],
    "transfer_queue.interface:kv_list": ["partition_id"],
    "transfer_queue.interface:kv_clear": ["keys", "partition_id"],
    "transfer_queue.interface:kv_batch_get": ["keys", "partition_id", "select_fields"],
    "transfer_queue.interface:kv_batch_put": ["keys", "partition_id", "fields", "tags"],
    "transfer_queue.interface:async_kv_put": ["key", "partition_id", "tag"],
    "transfer_queue.interface:async_kv_batch_put": ["keys", "partition_id", "fields", "tags"],
    # the CPU platform
    "verl.plugin.platform.platform_manager:PlatformRegistry.register": ["platform"],
    "verl.plugin.platform.platform_manager:set_platform": ["platform"],
    "verl.workers.engine.base:EngineRegistry.register": ["model_type", "backend", "device"],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine": ["model_config", "engine_config"],
    f"{RECEIVER}:BucketedWeightReceiver.receive_weights": ["on_bucket_received"],
    "transformers.modeling_utils:PreTrainedModel._check_and_adjust_attn_implementation": ["attn_implementation"],
    "torch.distributed.distributed_c10d:init_process_group": ["backend"],
    "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm": ["layer", "remove_weight"],
}


@pytest.mark.parametrize("door", SIGNATURES)
def test_signature(door):
    missing = set(SIGNATURES[door]) - set(parameters_of(door))
    assert not missing, f"{door} takes {parameters_of(door)} and no longer {sorted(missing)}"


# door -> text that must be in its source: promises that a signature does not show
PROMISES = {
    # "sync itself cannot be registered again": two classes under one name are refused
    f"{TRAINER}:register_trainer": ["existing is not cls", "raise ValueError"],
    # every name but sync is treated as asynchronous
    f"{TRAINER}:PPOTrainer": ['ReplayBuffer if self.trainer_mode == "sync" else ReplayBufferAsync'],
    f"{TRAINER}:PPOTrainer.__init__": ["self.trainer_mode = self.config.trainer.v1.trainer_mode"],
    f"{TRAINER}:PPOTrainer._init_dataloader": ["gen_batch_size = 1", "self.train_dataset", "self.val_dataset"],
    # prompts are announced with these tags, and the manager is called with a TensorDict that holds `uid`
    f"{TRAINER}:PPOTrainer._submit_batch_to_rollout": [
        '"is_prompt": True',
        '"status": "pending"',
        "self.agent_loop_manager.generate_sequences(batch)",
    ],
    f"{TRAINER}:PPOTrainer._fetch_one_gen_batch": ['batch_dict["raw_prompt"]', 'batch_dict["uid"]'],
    # a mini-batch size is multiplied by the group size
    f"{TRAINER}:PPOTrainer._update_actor": ["ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n"],
    f"{TRAINER}:PPOTrainer._update_critic": ["ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n"],
    f"{TRAINER}:PPOTrainer._compute_advantage": [
        '"rm_scores"',
        '"values"',
        '"advantages", "returns"',
        '"token_level_rewards"',
        '"rollout_is_weights"',
        "self.kl_ctrl_in_reward",
    ],
    # refills are whole multiples of it
    f"{TRAINER}:PPOTrainer._next_train_batch": ["num_prompts % gen_batch_size != 0"],
    # the samples that fill up a batch copy a real one's other columns, at that one's length
    "verl.trainer.ppo.padding_utils:construct_minimal_padding_template": ["is_padding=True"],
    f"{TRAINER}:PPOTrainer._compute_metrics": ['"num_turns"', 'tag["min_global_steps"]', 'tag["max_global_steps"]'],
    "verl.trainer.main_ppo:run_ppo": ["task_runner_class.remote()", "runner.run.remote(config)", "ray.init("],
    "verl.trainer.main_ppo:TaskRunnerV1.init_agent_loop_manager": [
        "agent_loop_manager_class",
        "config=",
        "llm_client=",
        "teacher_client=",
        "reward_loop_worker_handles=",
    ],
    # a group's key is cut at its first underscore; its status is one of four
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._sync_metadata_from_transfer_queue": [
        'tag.get("is_prompt", False)',
        '"pending"',
        '"running"',
        '"finished"',
        '"failure"',
    ],
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._materialize_batch": ['key.split("_")[0]', "tq.kv_clear"],
    "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._agent_loop_postprocess": [
        '"{uid}_{session_id}_{i}"',
        '"loss_mask"',
        '"input_ids"',
        '"position_ids"',
        '"prompt_len"',
        '"response_len"',
        '"seq_len"',
        '"global_steps"',
    ],
    # a registered estimator is given these and no values, turn ids or gamma
    "verl.trainer.ppo.ray_trainer:compute_advantage": [
        '"token_level_rewards"',
        '"response_mask"',
        '"config"',
        '"index"',
    ],
    # a reply that was aborted goes on with what it has as part of the prompt, through the next class's `generate`
    "verl.workers.rollout.llm_server:FullyAsyncLLMServerClient.generate": [
        "await super().generate(",
        "prompt_ids=prompt_ids + final_output.token_ids",
    ],
    "verl.trainer.ppo.utils:create_rl_dataset": ["data_files=", "tokenizer=", "processor=", "config=", "max_samples="],
    # sampling parameters reach vLLM; `stop` and `length` come back alike
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer.generate": [
        "SamplingParams(max_tokens=max_tokens, **sampling_params)",
        '("stop", "length")',
    ],
    # why the plugin exists; when one of these is gone, so is the need for its adaptation
    "verl.utils.distributed:initialize_global_process_group_ray": ["cpu:gloo,{get_device_name()}:{get_nccl_backend()}"],
    "verl.utils.model:load_valuehead_model": ['attn_implementation="flash_attention_2"'],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine": [
        "sync_module_states=True",
        "CPUOffloadPolicy(pin_memory=True)",
    ],
    f"{RECEIVER}:BucketedWeightReceiver.receive_weights": ["tensor.to(self.device)"],
    f"{RECEIVER}:rebuild_shared_memory": ["torch.frombuffer"],
    "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm": ["ops._supports_onednn", "torch.empty(0)"],
    "vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler.forward_cpu": ["compiled_random_sample(logits)"],
    "vllm.v1.sample.ops.topk_topp_sampler:compiled_random_sample": ["exponential_()"],
    "vllm.v1.sample.sampler:Sampler.gather_logprobs": ["batched_count_greater_than("],
    # CPU features, not the version, choose vLLM's library, so one set-up serves AVX2 and AVX-512
    "vllm.platforms.cpu:CpuPlatform.import_kernels": ["_is_avx512_supported()", "vllm._C_AVX2"],
    "vllm.platforms:vllm_version_matches_substr": ['version("vllm")'],
}


@pytest.mark.parametrize("door", PROMISES)
def test_promise(door):
    source = source_of(door)
    for text in PROMISES[door]:
        assert text in source, f"{door} no longer says {text!r}"


NAMES = [
    "vllm._custom_ops:_supports_onednn",
    "verl.trainer.main_ppo:TaskRunnerV1",
    f"{TRAINER}:TRAINER_REGISTRY",
    "verl.trainer.ppo.v1.trainer_sync:PPOTrainerSync",
    "verl.trainer.ppo.v1.trainer_colocate_async:PPOTrainerColocateAsync",
    "verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync",
    "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync",
    "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ",
    "verl.workers.rollout.llm_server:FullyAsyncLLMServerClient",
    "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension",
]


@pytest.mark.parametrize("door", NAMES)
def test_name(door):
    find(door)


def test_sampler_contract():
    """A custom sampler is built with six keywords; the grouping ones are for veRL's own classes only."""
    build = source_of(f"{TRAINER}:PPOTrainer._build_replay_buffer")
    given, _, own = build.partition("if not has_custom_sampler:")
    for keyword in (
        "trainer_mode",
        "trainer_config",
        "max_off_policy_threshold",
        "max_off_policy_strategy",
        "sampler_kwargs",
        "refill_fn",
    ):
        assert f"{keyword}=" in given
        assert keyword in parameters_of("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer")
    assert "filter_groups_metric=" in own and "train_batch_size=" in own
    assert "train_batch_size=" not in given


def test_record_fields_of_a_rollout():
    """What the trainer reads from TransferQueue is what our agent proxy must write."""
    wanted = {"prompts", "responses", "response_mask", "rm_scores", "rollout_log_probs", "num_turns", "extra_fields"}
    assert wanted <= set(re.findall(r'"(\w+)"', text_of(TRAINER)))


def test_the_task_runner_is_an_actor_class():
    """So it cannot be subclassed as it is: ``__ray_metadata__.modified_class`` is the way to its plain class."""
    assert [d.attr for d in find("verl.trainer.main_ppo:TaskRunnerV1").decorator_list] == ["remote"]


def test_config_keys():
    config = yaml.safe_load((folder_of("verl") / "trainer" / "config" / "_generated_ppo_trainer.yaml").read_text())
    for key in (
        "trainer.device",
        "trainer.use_v1",
        "trainer.v1.trainer_mode",
        "trainer.n_gpus_per_node",
        "trainer.nnodes",
        "trainer.v1.sampler.custom_sampler.path",
        "trainer.v1.sampler.custom_sampler.name",
        "trainer.resume_mode",
        "trainer.default_local_dir",
        "trainer.save_freq",
        "trainer.test_freq",
        "trainer.val_before_train",
        "trainer.total_training_steps",
        "trainer.rollout_data_dir",
        "trainer.logger",
        "trainer.critic_warmup",
        "data.custom_cls.path",
        "data.custom_cls.name",
        "data.shuffle",
        "data.dataloader_num_workers",
        "data.train_batch_size",
        "data.train_files",
        "data.val_files",
        "data.gen_batch_size",
        "algorithm.adv_estimator",
        "algorithm.gamma",
        "algorithm.lam",
        "algorithm.use_kl_in_reward",
        "algorithm.rollout_correction",
        "critic.enable",
        "critic.strategy",
        "critic.model.path",
        "critic.fsdp.dtype",
        "critic.ppo_mini_batch_size",
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.model.lora_rank",
        "actor_rollout_ref.model.lora_alpha",
        "actor_rollout_ref.model.target_modules",
        "actor_rollout_ref.model.override_config",
        "actor_rollout_ref.model.use_remove_padding",
        "actor_rollout_ref.actor.strategy",
        "actor_rollout_ref.actor.fsdp_config.dtype",
        "actor_rollout_ref.actor.ppo_mini_batch_size",
        "actor_rollout_ref.actor.use_torch_compile",
        "actor_rollout_ref.actor.use_kl_loss",
        "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.rollout.val_kwargs.n",
        "actor_rollout_ref.rollout.calculate_log_probs",
        "actor_rollout_ref.rollout.free_cache_engine",
        "actor_rollout_ref.rollout.gpu_memory_utilization",
        "actor_rollout_ref.rollout.agent.num_workers",
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
        "reward.num_workers",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units",
        "ray_kwargs.ray_init.num_cpus",
    ):
        node = config
        for part in key.split("."):
            assert part in node, f"veRL's configuration has no {key} any more"
            node = node[part]


@pytest.mark.parametrize(
    "door",
    [
        # keys that veRL reads but does not list in its YAML: a field of a dataclass, or read with `get`
        "verl.workers.config.rollout:AgentLoopConfig.agent_loop_manager_class",
        "verl.workers.config.rollout:RolloutConfig.enable_sleep_mode",
        "verl.workers.config.engine:FSDPEngineConfig.mixed_precision",
    ],
)
def test_config_keys_outside_the_yaml(door):
    find(door)


def test_every_call_on_the_device_module_is_there():
    """Whatever veRL calls on ``torch.cuda`` in the parts that run on a CPU, the stand-in has."""
    from verl_cpu.platform import make_device_module

    elsewhere = (
        "models/mcore",
        "workers/engine/megatron",
        "third_party",
        "checkpoint_engine/n",
        "checkpoint_engine/m",
        "checkpoint_engine/k",
        "checkpoint_engine/h",
        "checkpoint_engine/delta",
        "sglang",
        "trtllm",
        "utils/qat",
        "utils/profiler",
        "workers/engine/veomni",
        "utils/megatron",
        "utils/activation_offload",
    )
    root, missing, seen = folder_of("verl"), {}, set()
    device = make_device_module()
    for path in root.rglob("*.py"):
        relative = path.relative_to(root).as_posix()
        if relative.startswith("plugin/") or any(part in relative for part in elsewhere):
            continue
        for name in re.findall(r"(?:get_torch_device\(\)|device_module)\.(\w+)", path.read_text()):
            seen.add(name)
            if not hasattr(device, name):
                missing.setdefault(name, []).append(relative)
    assert {"max_memory_allocated", "synchronize", "get_rng_state"} <= seen  # the pattern still finds something
    assert not missing


def test_core_algorithms_register_under_a_name_once():
    from verl.trainer.ppo import core_algos

    @core_algos.register_adv_est("an_estimator_of_a_test")
    def estimator(token_level_rewards, response_mask, config=None, index=None):
        return token_level_rewards, token_level_rewards

    try:
        assert core_algos.get_adv_estimator_fn("an_estimator_of_a_test") is estimator
        with pytest.raises(ValueError, match="has already been registered"):
            core_algos.register_adv_est("an_estimator_of_a_test")(lambda: None)
        assert {"gae", "grpo", "rloo", "reinforce_plus_plus", "remax", "gpg", "opo", "gdpo"} <= set(
            core_algos.ADV_ESTIMATOR_REGISTRY
        )
    finally:
        del core_algos.ADV_ESTIMATOR_REGISTRY["an_estimator_of_a_test"]


def test_engine_registry_files_engines_as_the_plugin_expects():
    """``_engines[model_type][backend][device]``, an engine for each kind of model, and none for cpu by veRL itself."""
    source = text_of("verl.workers.engine.fsdp.transformer_impl")
    for model_type in ("language_model", "value_model"):
        assert f'register(model_type="{model_type}", backend=["fsdp", "fsdp2"], device=["cuda", "npu"])' in source
    assert "cls._engines[model_type][current_backend][key] = engine_class" in source_of(
        "verl.workers.engine.base:EngineRegistry.register"
    )


def test_a_plugin_is_imported_and_not_called():
    """Why the entry point names a module that acts on import."""
    source = text_of("verl")
    assert 'group="verl.plugins"' in source and "_ep.load()" in source and "_ep.load()(" not in source
