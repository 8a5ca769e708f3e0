"""The loop over scripted policies: who wrote which token, rewards, limits, failures. No Ray, no vLLM."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.env.registry import load_specs
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.ctx_manager import PARSERS, ContextConfig, ContextManager, register_parser
from ragen.llm_agent.es_manager import EnvStateManager, Split
from ragen.llm_agent.policy import SCRIPTS, Generation, GenerationError, ScriptedPolicy
from tests.llm_agent.tokenizers_for_tests import CHATML, byte_tokenizer

TOKENIZER = byte_tokenizer()
END = TOKENIZER.eos_token_id


def context(tokenizer=TOKENIZER, **changes) -> ContextManager:
    settings = {
        "max_model_len": 2000, "response_length": 64, "max_turn": 6, "max_actions_per_turn": 2,
        "enable_think": False, "system_prompt": "", "format_reminder": False,
    }  # fmt: skip
    return ContextManager(tokenizer, ContextConfig(**{**settings, **changes}))


def environments(groups=1, members=1, spec=None, **config) -> EnvStateManager:
    entry = {
        "env_type": "counting_env:CountingEnv",
        "max_actions_per_traj": 8,
        "env_config": config,
        **(spec or {}),
    }
    return EnvStateManager(
        load_specs({"Count": entry}), Split(groups, members, ("Count",), (groups,)), run_seed=1, base_seed=50
    )


class Replies:
    """Replies with the given id lists in turn, and remembers every prompt it was shown."""

    def __init__(self, *replies):
        self.replies, self.prompts, self.samplings = list(replies), [], []

    async def generate(self, prompt_ids, sampling, images=None, episode=""):
        self.prompts.append(list(prompt_ids))
        self.samplings.append(sampling)
        ids = self.replies[(len(self.prompts) - 1) % len(self.replies)][: sampling.max_tokens]
        return Generation(list(ids), [-0.5] * len(ids))


def text_ids(text, end=True):
    return TOKENIZER(text)["input_ids"] + ([END] if end else [])


def play(es, ctx, policy, **limits):
    proxy = LLMAgentProxy(es, ctx, policy, **limits)
    try:
        return asyncio.run(proxy.rollout())
    finally:
        es.close()


ADD = text_ids("<answer>Add</answer>")


def test_tokens_of_an_episode_are_prompt_replies_and_observations_as_the_template_writes_them():
    policy = Replies(ADD)
    [t] = play(environments(goal_low=2, goal_high=2), context(), policy)
    text = TOKENIZER.decode(t.token_ids.tolist())
    assert text == (
        "<|im_start|>user\nCount to 2.\nActions: Add, Wait\n"
        "Reply with <answer>up to 2 actions separated by ||</answer>\n"
        "Turn 1 of 6, actions left: 8\n0/2<|im_end|>\n<|im_start|>assistant\n"
        "<answer>Add</answer><|im_end|>\n"
        "<|im_start|>user\nReward: -0.25\nTurn 2 of 6, actions left: 7\n1/2<|im_end|>\n<|im_start|>assistant\n"
        "<answer>Add</answer><|im_end|>"
    )
    assert t.token_ids[t.policy_mask].tolist() == ADD + ADD
    assert (t.status, t.end_reason, t.metrics["success"]) == ("finished", "terminated", 1.0)
    assert t.turn_rewards.tolist() == [-0.25, 1.0]


def test_a_truncated_reply_gets_its_end_token_as_not_the_policys():
    unfinished = text_ids("<answer>Add</answer>", end=False)
    [t] = play(environments(goal_low=2, goal_high=2), context(), Replies(unfinished))
    first = int(np.argmax(t.policy_mask)) + len(unfinished)
    assert t.token_ids[first] == END and not t.policy_mask[first]
    assert t.token_ids[t.policy_mask].tolist() == unfinished * 2


def test_each_prompt_is_everything_so_far():
    policy = Replies(ADD)
    [t] = play(environments(goal_low=3, goal_high=3), context(), policy)
    starts = np.flatnonzero(np.diff(t.policy_mask.astype(int)) == 1) + 1
    assert policy.prompts == [t.token_ids[:start].tolist() for start in starts]


@settings(max_examples=60, deadline=None)
@given(
    replies=st.lists(st.lists(st.integers(0, len(TOKENIZER) - 1), min_size=1, max_size=40), min_size=1, max_size=6),
    scores=st.booleans(),
)
def test_whatever_ids_are_sampled_are_the_ids_that_are_trained(replies, scores):
    policy = Replies(*replies)
    ctx = context(use_turn_scores=scores)
    [t] = play(environments(), ctx, policy)
    expected = [i for k in range(t.num_turns) for i in replies[k % len(replies)][: policy.samplings[k].max_tokens]]
    assert t.token_ids[t.policy_mask].tolist() == expected
    [sample] = ctx.formulate(t)
    assert sample.response_ids[sample.response_mask == 1].tolist() == expected
    assert sample.rewards.sum() == pytest.approx(t.episode_return, abs=1e-5)
    assert (sample.rewards[sample.response_mask == 0] == 0).all()


PLAIN = None
SYSTEM_REFUSED = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML


@pytest.mark.parametrize("template", [CHATML, PLAIN, SYSTEM_REFUSED], ids=["chatml", "none", "system refused"])
def test_any_template_keeps_sampled_ids_and_masks_exactly_them(template):
    ctx = context(byte_tokenizer(template), system_prompt="SYS")
    [t] = play(environments(goal_low=3, goal_high=3), ctx, Replies(ADD))
    assert t.token_ids[t.policy_mask].tolist() == ADD * 3
    assert TOKENIZER.decode(t.token_ids.tolist()).count("SYS") == 1


def test_a_prefilled_think_is_not_trained_and_the_models_own_is_not_doubled():
    ctx = context(
        byte_tokenizer(CHATML.replace("assistant\n{% endif", "assistant\n<think>{% endif")), enable_think=True
    )
    continued, own = text_ids("so</think><answer>Add</answer>"), text_ids("<think>so</think><answer>Add</answer>")
    for reply in (continued, own):
        [t] = play(environments(goal_low=1, goal_high=1), ctx, Replies(reply))
        assert t.metrics["success"] == 1.0 and t.token_ids[t.policy_mask].tolist() == reply


def test_think_is_required_when_enabled():
    [t] = play(environments(), context(enable_think=True, max_turn=1), Replies(ADD))
    assert t.metrics["format_faults"] == 1.0 and t.metrics["num_actions"] == 0.0


@pytest.mark.parametrize(
    ("answer", "executed", "penalty", "note"),
    [
        ("add||WAIT", ("Add", "Wait"), 0.0, ""),
        ("Add||Jump", ("Add",), -0.1, "Unknown actions were ignored: Jump"),
        ("Jump", (), -0.1, "Unknown actions were ignored: Jump"),
        ("", (), -0.1, "held no action"),
        ("Wait||Wait||Wait", ("Wait", "Wait"), 0.0, "Only the first 2"),
    ],
)
def test_actions_are_matched_limited_and_penalised_once_a_turn(answer, executed, penalty, note):
    [t] = play(
        environments(goal_low=9, goal_high=9), context(max_turn=2), Replies(text_ids(f"<answer>{answer}</answer>"))
    )
    turn = t.turns[0]
    assert (turn.actions, turn.format_penalty) == (executed, penalty)
    assert turn.reward == pytest.approx(-0.25 * len(executed) + penalty)
    assert note in " ".join(turn.notes)
    assert note in TOKENIZER.decode(t.token_ids.tolist()) or not note


def test_penalty_lands_on_its_own_turn_with_turn_scores():
    bad = text_ids("nonsense")
    ctx = context(use_turn_scores=True)
    [t] = play(environments(goal_low=1, goal_high=1), ctx, Replies(bad, ADD))
    [sample] = ctx.formulate(t)
    np.testing.assert_allclose(sample.rewards[t.turn_ends() - len(sample.prompt_ids)], [-0.1, 1.0], rtol=1e-6)


def test_the_prompt_states_the_true_limit_when_fewer_actions_are_left():
    [t] = play(
        environments(spec={"max_actions_per_traj": 3}, goal_low=9, goal_high=9),
        context(format_reminder=True),
        Replies(text_ids("<answer>Add||Add</answer>")),
    )
    text = TOKENIZER.decode(t.token_ids.tolist())
    assert "actions left: 1\n2/9\nReply with <answer>your action</answer>" in text
    assert (t.end_reason, t.metrics["num_actions"]) == ("max_actions", 3.0)
    assert "Only the first 1" in " ".join(t.turns[1].notes)


def test_max_turn_ends_the_episode():
    [t] = play(environments(goal_low=9, goal_high=9), context(max_turn=3), Replies(ADD))
    assert (t.num_turns, t.status, t.end_reason) == (3, "truncated", "max_turn")


def test_the_context_never_exceeds_max_model_len():
    policy = Replies(text_ids("<answer>Wait</answer>"))
    for limit in range(175, 330, 3):
        [t] = play(environments(goal_low=9, goal_high=9), context(max_model_len=limit), policy)
        samplings = list(zip(policy.prompts, policy.samplings, strict=True))
        assert all(len(prompt) + sampling.max_tokens <= limit for prompt, sampling in samplings)
        if t.usable:
            assert t.end_reason in ("context", "max_turn", "max_actions")
            assert t.turn_ends()[-1] < limit
        else:
            assert t.end_reason == "generation_error"
        policy.prompts.clear(), policy.samplings.clear()


def test_stop_strings_reach_the_sampler():
    policy = Replies(ADD)
    play(environments(), context(stop=("</answer>",)), policy)
    assert {sampling.stop for sampling in policy.samplings} == {("</answer>",)}


def test_a_tags_own_reply_limit_wins():
    policy = Replies(ADD)
    play(environments(spec={"max_tokens": 5}), context(), policy)
    assert {sampling.max_tokens for sampling in policy.samplings} == {5}


def test_members_start_equal_with_own_luck_and_own_sampler_seeds():
    policy = Replies(ADD)
    trajectories = play(environments(groups=2, members=3), context(), policy)
    for group in (trajectories[:3], trajectories[3:]):
        assert len({t.turns[0].observation for t in group}) == 1
        assert len({t.seed for t in group}) == 1
    assert trajectories[3].seed == trajectories[0].seed + 1
    seeds = [sampling.seed for sampling in policy.samplings]
    assert len(set(seeds)) == len(seeds)


def test_results_do_not_depend_on_the_order_of_episodes():
    def outcome(reverse):
        es, ctx = environments(groups=4, members=4), context()
        tasks = es.tasks()
        proxy = LLMAgentProxy(es, ctx, ScriptedPolicy(SCRIPTS["random"], ctx))
        played = asyncio.run(proxy.rollout(reversed(tasks) if reverse else tasks))
        es.close()
        return {(t.seed, t.member): t.token_ids.tolist() for t in played}

    assert outcome(False) == outcome(True)


@pytest.mark.parametrize("script", ["random", "oracle"])  # the oracle knows nothing here: a random action instead
@pytest.mark.parametrize("isolate", ["inline", "process"])
def test_scripts_play_free_text_by_the_environments_own_random_actions(script, isolate):
    es = environments(groups=4, spec={"env_type": "counting_env:SpokenEnv", "isolate": isolate})
    trajectories = play(es, context(), ScriptedPolicy(SCRIPTS[script], context()))
    assert {t.metrics["format_faults"] for t in trajectories} == {0.0}
    assert {action for t in trajectories for turn in t.turns for action in turn.actions} == {"add 0", "add 1"}


def test_a_script_says_when_no_random_action_can_be_drawn(caplog):
    es = environments(spec={"env_type": "counting_env:SilentEnv"})
    [t] = play(es, context(), ScriptedPolicy(SCRIPTS["random"], context()))
    assert not t.usable and "Count takes free text and its environment defines no random_action" in caplog.text


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "env_raised"),
        ("sleep", "env_timeout"),
        pytest.param("spin", "env_timeout", marks=pytest.mark.wide),
    ],
)
def test_a_broken_environment_costs_its_own_episode_only(fault, reason):
    es = environments(
        groups=2, members=4, goal_low=3, goal_high=3, fault=fault, fault_at=2, fault_every=2,
        spec={"isolate": "process", "step_timeout_s": 1.0, "max_workers": 4},
    )  # fmt: skip
    trajectories = play(es, context(), Replies(ADD))
    failed = [t for t in trajectories if not t.usable]
    assert 0 < len(failed) < 8
    assert {t.end_reason for t in failed} == {reason}
    assert all(t.metrics["success"] == 1.0 for t in trajectories if t.usable)
    assert all(t.num_turns == 2 and t.turn_rewards.tolist() == [-0.25, 0.0] for t in failed)


class Broken:
    def __init__(self, behave):
        self.behave, self.cancelled = behave, 0

    async def generate(self, prompt_ids, sampling, images=None, episode=""):
        try:
            return await self.behave()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def _hang():
    await asyncio.sleep(3600)


async def _refuse():
    raise GenerationError("no")


async def _empty():
    return Generation([], [])


@pytest.mark.parametrize(
    ("behave", "reason"),
    [(_hang, "generation_timeout"), (_refuse, "generation_error"), (_empty, "generation_error")],
)
def test_a_broken_generation_costs_its_own_episode_and_is_cancelled(behave, reason):
    policy = Broken(behave)
    [t] = play(environments(), context(), policy, generation_timeout_s=0.1)
    assert (t.status, t.end_reason, t.num_turns) == ("failed", reason, 0)
    assert policy.cancelled == (behave is _hang)


def test_an_episode_over_its_limit_fails():
    [t] = play(environments(), context(), Broken(_hang), episode_timeout_s=0.1)
    assert (t.status, t.end_reason) == ("failed", "episode_timeout")


def test_a_fault_of_our_own_is_raised_not_counted():
    async def bug():
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        play(environments(), context(), Broken(bug))


def test_batch_wise_calls_are_the_same_episode():
    es, ctx = environments(groups=2, members=2, goal_low=2, goal_high=2), context()

    async def run():
        states = await es.reset()
        prompts = ctx.get_lm_inputs(states)
        replies = ctx.get_env_inputs([ADD] * len(prompts))
        await es.step(dict(enumerate(replies)), max_actions=2)
        outcomes = await es.step(dict(enumerate(replies)), max_actions=2)
        metrics = [state["metrics"] for state in es.get_rollout_states()]
        await es.aclose()
        return prompts, outcomes, metrics

    prompts, outcomes, metrics = asyncio.run(run())
    policy = Replies(ADD)
    trajectories = play(es, ctx, policy)
    assert prompts[0] == policy.prompts[0]
    assert {outcome.end_reason for outcome in outcomes.values()} == {"terminated"}
    assert metrics == [t.metrics for t in trajectories]
    assert len(ctx.formulate_rollouts(trajectories)) == 4


def test_tags_take_their_share_of_every_step():
    split = Split(4, 2, ("A", "B"), (1, 3))
    assert [split.tag_of_row(row) for row in range(8)] == ["A", "B", "B", "B"] * 2


def test_a_split_that_does_not_add_up_is_refused():
    node = {"env_groups": 4, "group_size": 1, "env_configs": {"tags": ["A"], "n_groups": [3]}}
    with pytest.raises(ValueError, match="sum to env_groups 4"):
        Split.from_config(node)


def test_parsers_are_registered_once():
    with pytest.raises(ValueError, match="already registered"):
        register_parser("think_answer")(type(PARSERS["think_answer"]))
    with pytest.raises(ValueError, match="agent_proxy.parser: 'nope'"):
        context(parser="nope")
