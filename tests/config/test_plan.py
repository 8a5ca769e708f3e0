"""The printed plan and the facts behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig

from ragen.config import load
from ragen.config.model_facts import ModelFacts
from ragen.config.plan import memory, plan

Quickstart = Callable[..., DictConfig]


def test_plan_states_what_a_step_does(quickstart: Quickstart):
    text = plan(quickstart(), ModelFacts(), run="quickstart-seed0-00000000")

    assert "8 groups x 16 episodes = 128 a step (FrozenLake 8), 8 turns of up to 1 actions" in text
    assert "gae on 128 episodes a step, 4 mini-batches of 32, 30 steps" in text
    assert "at most 131k a step" in text
    assert "256 episodes (FrozenLake 256), before and after" in text
    assert "unknown" in text


def test_plan_counts_the_episodes_that_the_filter_keeps():
    text = plan(load("base"), ModelFacts())

    assert "gae on 32 episodes a step, 1 mini-batches of 32, 200 steps" in text


def test_facts_are_read_from_a_model_folder(small_model: Path, quickstart: Quickstart):
    facts = ModelFacts.of(quickstart(f"model_path={small_model}"))

    assert facts.parameters == 4 * 16 + 16
    assert (facts.hidden, facts.layers, facts.vocabulary, facts.max_positions) == (16, 2, 4, 4096)
    assert facts.cache_per_token == 2 * 2 * 2 * 4  # keys and values, layers, heads, head size
    assert facts.first_prompt_tokens is not None and facts.first_prompt_tokens > 15


def test_parameters_are_estimated_from_the_shape_alone(tmp_path: Path, quickstart: Quickstart):
    # the shape of Qwen2.5-0.5B, whose card states 494,032,768 parameters
    shape = {
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 32768,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))

    facts = ModelFacts.of(quickstart(f"model_path={tmp_path}"))

    assert facts.parameters is not None
    assert abs(facts.parameters / 494_032_768 - 1) < 0.001


def test_memory_of_each_phase(quickstart: Quickstart):
    facts = ModelFacts(parameters=10**9, hidden=2048, layers=16, vocabulary=32000, cache_per_token=2 * 16 * 512)

    phases = {phase.name: phase for phase in memory(load("base"), facts)}

    assert list(phases) == ["rollout", "actor", "critic"]
    assert phases["rollout"].weights == 2 * 10**9  # bf16
    assert phases["actor"].weights == 4 * 10**9 and phases["actor"].state == 12 * 10**9
    assert phases["critic"].working < phases["actor"].working  # no logits

    lean = {p.name: p for p in memory(load("base", ["lora.rank=8", "algorithm.adv_estimator=grpo"]), facts)}
    assert list(lean) == ["rollout", "actor"]
    assert lean["actor"].state < 10**9
    with_reference = memory(load("base", ["actor_rollout_ref.actor.use_kl_loss=true"]), facts)
    assert with_reference[-1].name == "reference"
    two = {p.name: p for p in memory(load("base", ["trainer.n_gpus_per_node=2"]), facts)}
    assert two["actor"].state == 6 * 10**9


def test_plan_says_when_memory_is_short(quickstart: Quickstart):
    facts = ModelFacts(parameters=10**13, hidden=1, layers=1, vocabulary=1, cache_per_token=1)

    assert "more than there is" in plan(quickstart(), facts)


def test_plan_counts_updates_and_says_what_lags(quickstart: Quickstart):
    overrides = "actor_rollout_ref.actor.ppo_epochs=2", "trainer.v1.trainer_mode=ragen_colocate_async"
    text = plan(quickstart(*overrides), ModelFacts())

    assert "4 mini-batches of 32 x 2 epochs = 8 updates" in text
    assert "ragen_colocate_async: 1 batches ahead, weights per token cut at 2.0" in text
    assert "caution" not in text


def test_plan_warns_of_a_truncated_sampler(quickstart: Quickstart):
    text = plan(quickstart("actor_rollout_ref.rollout.top_p=0.9"), ModelFacts())

    assert "caution top_p=0.9, top_k=-1: the sampler's log-probs are of the tokens left over" in text
    assert "\nlag" not in text
