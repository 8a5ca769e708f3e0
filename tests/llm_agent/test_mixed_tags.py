"""Several tags in one run: each with its own groups, prompts, limits and metrics, through the config and the proxy."""

import asyncio
import dataclasses

import numpy as np
import pytest

from ragen.config import load
from ragen.config.to_verl import to_verl
from ragen.env.registry import load_specs
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, Split
from ragen.llm_agent.policy import SCRIPTS, ScriptedPolicy
from ragen.trainer.metrics import episode_metrics, failure_summary
from ragen.trainer.settings import context_config
from tests.llm_agent.tokenizers_for_tests import byte_tokenizer

TAGS = ("SimpleSokoban", "FrozenLake", "Bandit")
LIMITS = {"SimpleSokoban": 3, "FrozenLake": 7, "Bandit": 1}
REPLY_LIMITS = {"SimpleSokoban": 60, "FrozenLake": 40, "Bandit": None}
GROUPS, MEMBERS = 6, 4


class Watching(ScriptedPolicy):
    """Plays by a script and keeps what it was asked: tag → prompts as text, and samplings."""

    def __init__(self, script, context):
        super().__init__(script, context)
        self.prompts = {tag: [] for tag in TAGS}
        self.samplings = {tag: [] for tag in TAGS}

    def bind(self, episode):
        bound, outer, ask = super().bind(episode), self, None
        ask = bound.generate

        async def generate(prompt_ids, sampling, images=None, episode_name="", **kwargs):
            outer.prompts[episode.tag].append(outer._context.tokenizer.decode(prompt_ids))
            outer.samplings[episode.tag].append(sampling)
            return await ask(prompt_ids, sampling, images)

        bound.generate = generate
        return bound


async def play_out(episode, rng):
    """Bandit: the oracle's arm. FrozenLake: the oracle's move, twice. Sokoban: a random move and one that is none."""
    if episode.tag == "SimpleSokoban":
        return [str(rng.choice(episode.description.actions)), "Jump"]
    best = await episode.oracle_action() or "Left"
    return [best] if episode.tag == "Bandit" else [best, best]


@pytest.fixture(scope="module")
def played():
    """The training split of a composed config with an equal split, played once."""
    overrides = [
        "model_path=/m", f"es_manager.train.env_groups={GROUPS}", f"es_manager.train.group_size={MEMBERS}",
        f"es_manager.train.env_configs.tags=[{','.join(TAGS)}]", "es_manager.train.env_configs.n_groups=null",
        "agent_proxy.max_turn=6", "agent_proxy.max_actions_per_turn=2", "actor_rollout_ref.rollout.response_length=80",
        "actor_rollout_ref.rollout.max_model_len=8000", "agent_proxy.format_reminder=true",
        "ppo_mini_batch_size=24",
    ]  # fmt: skip
    overrides += [f"custom_envs.{tag}.max_actions_per_traj={limit}" for tag, limit in LIMITS.items()]
    overrides += [f"custom_envs.{tag}.max_tokens={limit}" for tag, limit in REPLY_LIMITS.items() if limit]
    own = to_verl(load("base", overrides)).ragen
    split = Split.from_config(own.es_manager.train)
    es = EnvStateManager(load_specs(own.custom_envs), split, run_seed=1, base_seed=10_000, format_penalty=-0.5)
    ctx = ContextManager(byte_tokenizer(), dataclasses.replace(context_config(own), enable_think=False))
    policy = Watching(play_out, ctx)
    try:
        trajectories = asyncio.run(LLMAgentProxy(es, ctx, policy).rollout())
    finally:
        es.close()
    return trajectories, policy, split


def of(tag, trajectories):
    return [t for t in trajectories if t.tag == tag]


def test_null_splits_the_groups_equally_in_the_order_of_the_tags(played):
    trajectories, _, split = played
    assert split.n_groups == (2, 2, 2)
    assert [t.tag for t in trajectories] == [tag for tag in TAGS for _ in range(2 * MEMBERS)]
    assert [t.group for t in trajectories] == [row for row in range(GROUPS) for _ in range(MEMBERS)]
    assert [t.seed for t in trajectories] == [10_000 + row for row in range(GROUPS) for _ in range(MEMBERS)]
    assert all(len({t.turns[0].observation for t in trajectories if t.group == row}) == 1 for row in range(GROUPS))


def test_each_tag_keeps_its_own_action_budget(played):
    trajectories, _, _ = played
    for tag in TAGS:
        assert max(t.metrics["num_actions"] for t in of(tag, trajectories)) <= LIMITS[tag]
    sokoban = of("SimpleSokoban", trajectories)
    unsolved = [t for t in sokoban if not t.metrics["success"]]
    assert unsolved and {(t.end_reason, t.metrics["num_actions"]) for t in unsolved} == {("max_actions", 3.0)}
    assert all(t.num_turns == 1 and t.end_reason == "terminated" for t in of("Bandit", trajectories))


def test_each_tag_keeps_its_own_reply_limit(played):
    _, policy, _ = played
    for tag in TAGS:
        assert {sampling.max_tokens for sampling in policy.samplings[tag]} == {REPLY_LIMITS[tag] or 80}


def test_each_tag_is_told_of_its_own_task_and_limits(played):
    _, policy, _ = played
    own = {"SimpleSokoban": "Actions: Up, Down, Left, Right", "FrozenLake": "Actions: Left, Down, Right, Up",
           "Bandit": "Phoenix"}  # fmt: skip
    for tag in TAGS:
        for prompt in policy.prompts[tag]:
            assert own[tag] in prompt
            assert not any(words in prompt for other, words in own.items() if other != tag)
        first = policy.prompts[tag][0]
        assert f"Turn 1 of 6, actions left: {LIMITS[tag]}\n" in first
        several = "up to 2 actions separated by ||"
        assert (several in first) == (LIMITS[tag] > 1)
        assert ("<answer>your action</answer>" in first) == (LIMITS[tag] == 1)
    third = [prompt for prompt in policy.prompts["SimpleSokoban"] if "Turn 3 of 6" in prompt]
    assert third
    for prompt in third:  # one action is left, and asked for
        last = prompt.rpartition("<|im_start|>user")[2]
        assert "actions left: 1" in last and "Reply with <answer>your action</answer>" in last


def test_metrics_are_each_tags_own(played):
    trajectories, _, _ = played
    metrics = episode_metrics(trajectories, group_size=MEMBERS)
    for tag in TAGS:
        mine = of(tag, trajectories)
        assert len(mine) == 2 * MEMBERS
        expected = {
            "success": np.mean([t.metrics["success"] for t in mine]),
            "return": np.mean([t.turn_rewards.sum() for t in mine]),
            "num_turns": np.mean([t.num_turns for t in mine]),
            "num_actions": np.mean([sum(len(turn.actions) for turn in t.turns) for t in mine]),
            "format_faults": np.mean([sum(turn.format_penalty < 0 for turn in t.turns) for t in mine]),
            f"pass@{MEMBERS}": np.mean(
                [any(t.metrics["success"] for t in mine if t.group == row) for row in {t.group for t in mine}]
            ),
        }
        for key, value in expected.items():
            assert metrics[f"{tag}/{key}"] == pytest.approx(float(value)), (tag, key)
    assert metrics["Bandit/success"] == metrics["Bandit/pass@4"] == 1.0
    assert metrics["Bandit/format_faults"] == metrics["FrozenLake/format_faults"] == 0.0
    assert metrics["Bandit/action_is_valid"] == metrics["FrozenLake/action_is_valid"] == 1.0
    sokoban = of("SimpleSokoban", trajectories)
    assert metrics["SimpleSokoban/format_faults"] == pytest.approx(np.mean([t.num_turns for t in sokoban]))
    assert 0.3 < metrics["SimpleSokoban/action_is_valid"] <= 0.5  # one of two is none
    assert metrics["episodes"] == GROUPS * MEMBERS and metrics["failed"] == 0.0
    assert {key.partition("/")[0] for key in metrics if "/" in key} == {*TAGS, "ended"}


def test_a_tag_whose_episodes_fail_leaves_the_others_alone():
    entries = {
        "Broken": {"env_type": "tests.llm_agent.bad_tools_env:BadTools"},
        "Bandit": {"env_type": "bandit", "max_actions_per_traj": 1},
    }
    es = EnvStateManager(load_specs(entries), Split(3, 2, ("Broken", "Bandit"), (1, 2)), run_seed=1, base_seed=5)
    own = to_verl(load("base", ["model_path=/m"])).ragen
    ctx = ContextManager(byte_tokenizer(), context_config(own))
    try:
        played = asyncio.run(LLMAgentProxy(es, ctx, ScriptedPolicy(SCRIPTS["oracle"], ctx)).rollout())
    finally:
        es.close()
    metrics = episode_metrics(played, group_size=2)
    assert failure_summary(played) == "2 Broken env_raised"
    assert metrics["failed/env_raised"] == 2.0 and metrics["Bandit/success"] == 1.0
    assert not any(key.startswith("Broken/") for key in metrics)


@pytest.mark.parametrize(
    ("n_groups", "rows"),
    [
        ([1, 3, 2], ["A", "B", "B", "B", "C", "C"]),
        ([0, 6, 0], ["B"] * 6),
        ([6, 0, 0], ["A"] * 6),
        ([0, 0, 6], ["C"] * 6),
    ],
)
def test_any_split_gives_each_tag_its_groups_in_every_step(n_groups, rows):
    split = Split.from_config(
        {"env_groups": 6, "group_size": 1, "env_configs": {"tags": ["A", "B", "C"], "n_groups": n_groups}}
    )
    assert [split.tag_of_row(row) for row in range(12)] == rows * 2
