"""From a name and overrides to a config."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from ragen.config import ConfigError, load
from ragen.config.compose import CONFIG_DIR, changed, compose, config_names, schema

HARDWARE = sorted(p.stem for p in (CONFIG_DIR / "hw").glob("*.yaml"))
NAMES = sorted(p.stem for p in CONFIG_DIR.glob("*.yaml"))


def all_but(quick: set[str], names: list[str]) -> list:
    """The names as parameters; all but the quick ones are left to the wide tests."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.wide) for name in names]


@pytest.mark.parametrize("name", all_but({"base", "quickstart", "_2_sokoban", "eval"}, NAMES))
def test_every_config_composes_and_resolves(name: str):
    OmegaConf.to_container(load(name), resolve=True, throw_on_missing=False)


@pytest.mark.parametrize("hardware", all_but({"cpu"}, HARDWARE))
def test_hardware_preset_reaches_the_keys_it_names(hardware: str):
    cfg = load("_2_sokoban", [f"+hw={hardware}"])

    preset = OmegaConf.load(CONFIG_DIR / "hw" / f"{hardware}.yaml")
    assert cfg.trainer.n_gpus_per_node == preset.trainer.n_gpus_per_node
    assert cfg.actor_rollout_ref.rollout.max_num_seqs == preset.actor_rollout_ref.rollout.max_num_seqs
    assert cfg.trainer.experiment_name == "sokoban"


def test_composing_does_not_import_torch_or_verl():
    import subprocess

    code = "import sys; from ragen.config import load; load('base'); print({'torch', 'verl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CONFIG_DIR.parent)

    assert done.stdout.strip() == "set()", done.stderr


def test_a_config_elsewhere_inherits_base(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("defaults: [base, _self_]\nalgorithm: {lam: 0.9}\n")

    cfg = load("mine", ["seed=2"], tmp_path)

    assert (cfg.algorithm.lam, cfg.seed, cfg.es_manager.train.env_groups) == (0.9, 2, 8)
    assert "mine" in config_names(tmp_path)


def test_defaults_are_those_that_users_know():
    cfg = load("base")

    assert (cfg.seed.train, cfg.seed.val) == (10000, 123)
    assert (cfg.ppo_mini_batch_size, cfg.micro_batch_size_per_gpu) == (32, 1)
    rollout = cfg.actor_rollout_ref.rollout
    assert (rollout.max_model_len, rollout.response_length, rollout.rollout_filter_ratio) == (3600, 400, 0.25)
    assert cfg.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 1
    assert (cfg.actor_rollout_ref.actor.clip_ratio_low, cfg.actor_rollout_ref.actor.clip_ratio_high) == (0.2, 0.28)
    assert (cfg.critic.optim.lr, cfg.actor_rollout_ref.actor.optim.lr) == (1e-5, 1e-6)
    lora = load("base-lora")
    assert (lora.lora.rank, lora.lora.alpha, lora.critic.optim.lr) == (64, 64, 1e-4)
    bandit = load("_1_bandit")
    assert list(bandit.es_manager.val.env_configs.n_groups) == [256, 256]


def test_all_unknown_keys_are_reported_at_once_with_the_nearest():
    with pytest.raises(ConfigError) as error:
        load("base", ["algorithm.lamm=0.9", "trainer.n_gpu=3", "ppo_minibatch_size=8"])

    assert str(error.value).splitlines() == [
        "algorithm.lamm=0.9: no such key; did you mean algorithm.lam?",
        "trainer.n_gpu=3: no such key; did you mean trainer.n_gpus_per_node?",
        "ppo_minibatch_size=8: no such key; did you mean ppo_mini_batch_size?",
    ]


def test_a_plus_does_not_make_an_unknown_key_known():
    _, faults = compose("base", ["+algorithm.lamm=0.9"])

    assert [str(f) for f in faults] == ["algorithm.lamm=0.9: no such key; did you mean algorithm.lam?"]


def test_open_nodes_take_any_key_with_or_without_plus():
    cfg = load(
        "base",
        [
            "+actor_rollout_ref.model.override_config.rope_theta=10000",
            "ray_kwargs.ray_init.object_store_memory=1000",
            "+actor_rollout_ref.model.override_config.attn_implementation=eager",
            "critic.fsdp.mixed_precision={param_dtype: fp32}",
        ],
    )

    assert cfg.actor_rollout_ref.model.override_config.rope_theta == 10000
    assert cfg.actor_rollout_ref.model.override_config.attn_implementation == "eager"
    assert cfg.ray_kwargs.ray_init.object_store_memory == 1000
    assert cfg.critic.fsdp.mixed_precision.param_dtype == "fp32"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["seed=1,2"], "add -m"),
        (["~algorithm.lam"], "off value"),
        (["just words"], "write key=value"),
        (["+hw=2x24gb"], "2x24gb"),
    ],
)
def test_a_bad_override_is_one_line(overrides: list[str], words: str):
    _, faults = compose("base", overrides)

    assert len(faults) == 1
    assert words in str(faults[0])
    assert "\n" not in str(faults[0])


def test_unknown_config_names_the_nearest():
    _, faults = compose("quikstart")

    assert "did you mean quickstart?" in str(faults[0])


def test_broken_yaml_is_one_line(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("algorithm: {lam: 0.9\n")

    _, faults = compose("mine", [], tmp_path)

    assert len(faults) == 1 and str(faults[0]).startswith("bad YAML")


def test_following_another_key_is_no_change():
    cfg = load("quickstart")

    assert cfg.critic.ppo_micro_batch_size_per_gpu == cfg.micro_batch_size_per_gpu
    assert not changed(cfg, "critic.ppo_micro_batch_size_per_gpu")
    assert changed(cfg, "micro_batch_size_per_gpu")


def test_schema_knows_veRLs_keys_and_ours():
    assert {"agent_proxy.max_turn", "trainer.balance_batch", "actor_rollout_ref.rollout.enable_sleep_mode"} <= set(
        schema()
    )
