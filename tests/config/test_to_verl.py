"""The hand-over to veRL: what is converted, and that veRL itself accepts the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from ragen.config import load, to_verl
from ragen.config.compose import CONFIG_DIR
from ragen.config.to_verl import resolve_attention, resolve_n_groups, resolve_seed

Quickstart = Callable[..., DictConfig]
#: Of evaluation and of the warm start, not of train.py.
EVALUATION = ("eval", "sft")
RUNNABLE = sorted(p.stem for p in CONFIG_DIR.glob("*.yaml") if p.stem not in ("envs", "ppo_trainer", *EVALUATION))
COMBINATIONS = [
    *[(name, ()) for name in RUNNABLE],
    *[("_2_sokoban", (f"+hw={p.stem}",)) for p in sorted((CONFIG_DIR / "hw").glob("*.yaml"))],
    ("quickstart", ("algorithm.adv_estimator=grpo",)),
    *[("quickstart", (f"+method={p.stem}",)) for p in sorted((CONFIG_DIR / "method").glob("*.yaml"))],
    ("quickstart", ("lora.rank=8",)),
    ("quickstart", ("trainer.n_gpus_per_node=2",)),
    ("quickstart", ("actor_rollout_ref.actor.use_kl_loss=true",)),
]


@pytest.mark.wide
@pytest.mark.parametrize(("name", "overrides"), COMBINATIONS, ids=[" ".join((n, *o)) for n, o in COMBINATIONS])
def test_verl_accepts_every_config(name: str, overrides: tuple[str, ...], small_model: Path):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = to_verl(load(name, [f"model_path={small_model}", *overrides]), config_name=name, run_dir="/run")

    if config.actor_rollout_ref.model.lora_rank:
        # the rank that vLLM serves is looked up in vLLM, which takes half a minute to import: see checks.py
        config.actor_rollout_ref.rollout.name = "not-vllm"
    validate_config(config, need_reference_policy(config), need_critic(config))
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    critic = omega_conf_to_dataclass(config.critic)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    omega_conf_to_dataclass(config.algorithm)
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    assert model.hf_config.hidden_size == 16
    assert actor.engine.strategy == actor.strategy
    # what the critic's engine will work by
    assert critic.engine.use_dynamic_bsz == config.critic.use_dynamic_bsz
    assert critic.engine.micro_batch_size_per_gpu == config.critic.ppo_micro_batch_size_per_gpu
    assert rollout.max_model_len == rollout.prompt_length + rollout.response_length
    # veRL multiplies by the group size
    groups = config.data.train_batch_size
    assert groups % actor.ppo_mini_batch_size == 0 and groups % critic.ppo_mini_batch_size == 0


def test_verl_starts_from_what_it_would_compose_itself():
    """Every key of veRL's own config is still there, apart from the places that its start-up takes out."""
    import importlib.util

    spec = importlib.util.find_spec("verl")
    own = OmegaConf.load(Path(spec.origin).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    config = to_verl(load("base"))

    def missing(theirs: DictConfig, ours: DictConfig, prefix: str = "") -> list[str]:
        found = []
        for key in theirs:
            child = theirs._get_node(key)
            if key not in ours.keys():  # `in` is False for ???
                found.append(prefix + key)
            elif OmegaConf.is_dict(child) and OmegaConf.is_dict(ours._get_node(key)) and not child._is_none():
                found += missing(child, ours._get_node(key), f"{prefix}{key}.")
        return found

    assert sorted(missing(own, config)) == ["custom_reward_function", "reward_model", "sandbox_fusion"]


def test_own_keys_are_gathered_and_taken_out(quickstart: Quickstart):
    cfg = quickstart("model_path=/m", "actor_rollout_ref.rollout.rollout_filter_ratio=0.5", "seed=3")
    before = OmegaConf.to_yaml(cfg)

    config = to_verl(cfg, config_name="quickstart", run_dir="/runs/x")

    assert OmegaConf.to_yaml(cfg) == before
    own = config.ragen
    assert own.seed == {"train": 3_010_000, "val": 123}
    assert own.es_manager.train.env_configs.n_groups == [8]
    assert own.rollout_filter.ratio == 0.5 and own.rollout_filter.type == "std"
    assert (own.response_length, own.max_model_len) == (16, 1024)
    assert own.val_sampling == {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": -1}
    assert own.generations_to_log == {"train": 128, "val": 20}
    assert (own.config_name, own.run_dir, own.model_path) == ("quickstart", "/runs/x", "/m")
    assert not any(key.startswith("rollout_filter") for key in config.actor_rollout_ref.rollout)
    assert not {"es_manager", "agent_proxy", "seed", "lora", "model_path"} & set(config)
    assert "use_ref" not in config.actor_rollout_ref.actor and "keep_best" not in config.trainer
    assert config.trainer.default_local_dir == "/runs/x/checkpoints"


def test_what_the_advantages_read_is_gathered_and_a_critic_made_where_they_need_one(quickstart: Quickstart):
    config = to_verl(quickstart("model_path=/m", "+method=turn_gae", "agent_proxy.reward_normalization.method=mean"))

    own = config.ragen.advantages
    assert (own.adv_estimator, own.high_level_gamma, own.lam, own.method) == ("turn_gae", 0.95, 0.95, "mean")
    assert (own.grouping, own.filter_loss_scaling, own.grpo_advantage_length_weight) == ("state", "none", False)
    assert config.critic.enable is True
    assert not {"high_level_gamma", "bi_level_gae", "gigpo_step_weight", "overlong_share"} & set(config.algorithm)
    assert to_verl(quickstart("model_path=/m", "+method=grpo")).critic.enable is None


def test_refills_lengthen_the_seed_stream_and_are_any_number_of_groups(quickstart: Quickstart):
    plain = to_verl(quickstart("model_path=/m"))
    refill = to_verl(quickstart("model_path=/m", "+method=dapo"))

    assert plain.trainer.v1.sampler.sampler_kwargs.max_batches == 1 and plain.data.gen_batch_size is None
    assert refill.trainer.v1.sampler.sampler_kwargs.max_batches == 4 and refill.data.gen_batch_size == 1
    assert refill.data.train_max_samples == 4 * plain.data.train_max_samples


def test_sizes_in_verls_own_units(quickstart: Quickstart):
    sizes = ("ppo_mini_batch_size=32", "micro_batch_size_per_gpu=32", "es_manager.val.group_size=2")
    config = to_verl(quickstart("model_path=/m", *sizes))

    assert (config.data.train_batch_size, config.actor_rollout_ref.rollout.n) == (8, 16)
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == config.critic.ppo_mini_batch_size == 2
    assert config.actor_rollout_ref.rollout.val_kwargs.n == 2
    assert config.actor_rollout_ref.model.path == config.critic.model.path == "/m"
    assert config.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu == 32


def test_a_critic_may_have_its_own_model(quickstart: Quickstart):
    config = to_verl(quickstart("model_path=/m", "critic.model.path=/c"))

    assert (config.actor_rollout_ref.model.path, config.critic.model.path) == ("/m", "/c")


def test_every_seed_follows_from_the_run_seed(quickstart: Quickstart):
    def seeds(k: int) -> list[int]:
        config = to_verl(quickstart("model_path=/m", f"seed={k}"))
        actor = config.actor_rollout_ref
        return [
            actor.actor.data_loader_seed, actor.actor.fsdp_config.seed, actor.ref.fsdp_config.seed, actor.rollout.seed,
            config.critic.data_loader_seed, config.critic.fsdp.seed, config.data.seed,
        ]  # fmt: skip

    first = seeds(1)
    assert first == seeds(1)
    assert len({*first, *seeds(2)}) == 14


def test_run_seeds_never_share_levels():
    first, second = resolve_seed(0), resolve_seed(1)

    assert (first["train"], second["train"], first["val"], second["val"]) == (10_000, 1_010_000, 123, 123)
    assert resolve_seed({"train": 1_010_000, "val": 123})["run"] == 1
    assert resolve_seed({"train": 77_000, "val": 123})["run"] == 77_000


def test_equal_split_and_its_limits():
    assert resolve_n_groups(8, ["a", "b"], None) == [4, 4]
    assert resolve_n_groups(8, ["a", "b"], [7, 1]) == [7, 1]
    with pytest.raises(ValueError, match="cannot be split equally over 3"):
        resolve_n_groups(8, ["a", "b", "c"], None)
    with pytest.raises(ValueError, match="1 numbers for 2 tags"):
        resolve_n_groups(8, ["a", "b"], [8])
    with pytest.raises(ValueError, match="adds up to 7"):
        resolve_n_groups(8, ["a", "b"], [4, 3])


def test_attention_falls_back_where_flash_attention_is_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert resolve_attention("auto", "cuda") == "sdpa"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert resolve_attention("auto", "cuda") == "flash_attention_2"
    assert resolve_attention("auto", "cpu") == "sdpa"
    assert resolve_attention("eager", "cuda") == "eager"


def test_what_lags_is_weighted_and_has_seeds_enough(quickstart: Quickstart):
    out = to_verl(quickstart())
    assert out.algorithm.rollout_correction.rollout_is is None and out.data.train_max_samples == 30 * 8
    out = to_verl(quickstart("trainer.v1.trainer_mode=ragen_colocate_async"))
    assert out.algorithm.rollout_correction.rollout_is == "token" and out.data.gen_batch_size == 1
    assert out.data.train_max_samples == 2 * (30 + 1) * 8  # one batch ahead; each group dropped once as stale
