"""Tools through templates of several shapes: what the model is shown, and that exactly its own tokens are trained."""

import asyncio
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.env.registry import load_specs
from ragen.env.tools import check_tools, read_call, tool, write_call
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.ctx_manager import ContextConfig, ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, Split
from ragen.llm_agent.policy import SCRIPTS, Generation, ScriptedPolicy
from ragen.llm_agent.prompt_hash import prompt_hash, prompt_settings, record_prompts
from ragen.llm_agent.wording import Wording
from tests.llm_agent.tokenizers_for_tests import CHATML, byte_tokenizer

_TOOLS = (
    "{% if tools %}<|im_start|>system\n"
    "{% for t in tools %}{{ t.function | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
)
_EACH = "{% for message in messages %}"
_MESSAGE = "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>"
_OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_NO_TOOL_ROLE = "{% if message['role'] == 'tool' %}{{ raise_exception('no tool role') }}{% endif %}"

#: Name → (template, takes tools, shows results).
TEMPLATES = {
    # tools in a system message, results inside a user's, as many models have it
    "results in the user's turn": (
        _TOOLS + _EACH + "{% if message['role'] == 'tool' %}<|im_start|>user\n<tool_response>\n"
        "{{ message['content'] }}\n</tool_response><|im_end|>\n{% else %}" + _MESSAGE + "\n{% endif %}{% endfor %}"
        + _OPEN, True, True,
    ),
    "a role of their own, no newline after the end": (
        _TOOLS + "{% for message in messages %}" + _MESSAGE + "{% endfor %}" + _OPEN, True, True,
    ),
    "no end token": (
        "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}{% for message in messages %}{{ message['role'] }}: "
        "{{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
        True, True,
    ),
    "no tools": (CHATML, False, True),
    "role refused": (
        _TOOLS + "{% for message in messages %}" + _NO_TOOL_ROLE + _MESSAGE + "\n{% endfor %}" + _OPEN, True, False,
    ),
    "results left out": (
        _TOOLS + _EACH + "{% if message['role'] != 'tool' %}" + _MESSAGE + "\n{% endif %}{% endfor %}"
        + _OPEN, True, False,
    ),
    "results want a call given as data": (
        _TOOLS + _EACH + "{% if message['role'] == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
        "{{ raise_exception('no call') }}{% endif %}" + _MESSAGE + "\n{% endfor %}" + _OPEN, True, False,
    ),
    "trips over tools": (
        "{% if tools %}{{ tools.no.such.thing }}{% endif %}{% for message in messages %}" + _NO_TOOL_ROLE + _MESSAGE
        + "\n{% endfor %}" + _OPEN, False, False,
    ),
    "no template at all": (None, False, True),
}  # fmt: skip


def context(template=CHATML, **changes):
    settings = {
        "max_model_len": 6000, "response_length": 500, "max_turn": 4, "max_actions_per_turn": 3, "enable_think": False,
        "system_prompt": "", "format_reminder": False, "parser": "tool_call",
    }  # fmt: skip
    return ContextManager(byte_tokenizer(template), ContextConfig(**{**settings, **changes}))


def environments(**config):
    entry = {"env_type": "calculator", "env_config": config}
    return EnvStateManager(
        load_specs({"Calculator": entry}), Split(1, 1, ("Calculator",), (1,)), run_seed=1, base_seed=5
    )


class Replies:
    def __init__(self, *replies):
        self.replies, self.samplings = list(replies), []

    async def generate(self, prompt_ids, sampling, images=None, episode=""):
        self.samplings.append(sampling)
        ids = self.replies[(len(self.samplings) - 1) % len(self.replies)][: sampling.max_tokens]
        return Generation(list(ids), [-0.5] * len(ids))


def play(ctx, policy, es=None):
    es = es or environments()
    try:
        [t] = asyncio.run(LLMAgentProxy(es, ctx, policy).rollout())
        return t
    finally:
        es.close()


def spans(t, ctx):
    """What the policy read before each reply, as text."""
    return [ctx.tokenizer.decode(t.token_ids[(t.turn_ids == k) & ~t.policy_mask].tolist()) for k in range(t.num_turns)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_a_template_offers_is_found_by_rendering_it(name):
    template, takes, shows = TEMPLATES[name]
    ctx = context(template)
    assert (ctx._template_takes_tools, ctx._template_shows_results) == (takes, shows)
    t = play(ctx, ScriptedPolicy(SCRIPTS["oracle"], ctx))
    assert t.status == "finished" and t.metrics["success"] == 1.0 and t.num_turns == 2
    first, second = spans(t, ctx)
    assert first.count("Works out an expression of whole numbers") == 1
    assert ("Tools, one JSON schema a line" in first) == (not takes)
    result = json.loads(t.turns[1].actions[0])["arguments"]["answer"]
    assert f"actions left: 9\n{result}" in second
    assert "Tools" not in second.replace("TOOLS", "") or not takes


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_exactly_the_sampled_tokens_are_trained_under_any_template(name, data):
    ctx = context(TEMPLATES[name][0])
    end = ctx.tokenizer.eos_token_id
    calls = [
        write_call("calculator", {"expression": "1 + 2"}), write_call("calculator", {"expression": "1 +"}),
        write_call("nothing", {}), '{"name": "calculator"', "{}",
    ]  # fmt: skip
    spoken = st.lists(st.sampled_from(calls), max_size=4).map(
        lambda some: ctx.tokenizer("".join(f"<tool_call>{call}</tool_call>" for call in some) or "x")["input_ids"]
    )
    ended = st.tuples(spoken, st.sampled_from([[], [end], [10], [198], [end, end]])).map(lambda pair: pair[0] + pair[1])
    noise = st.lists(st.integers(0, len(ctx.tokenizer) - 1), min_size=1, max_size=30)
    replies = data.draw(st.lists(st.one_of(ended, noise), min_size=1, max_size=4))
    policy = Replies(*replies)
    t = play(ctx, policy)
    expected = [i for k in range(t.num_turns) for i in replies[k % len(replies)][: policy.samplings[k].max_tokens]]
    assert t.token_ids[t.policy_mask].tolist() == expected
    [sample] = ctx.formulate(t)
    assert sample.response_ids[sample.response_mask == 1].tolist() == expected
    assert (sample.log_probs[sample.response_mask == 0] == 0).all()


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_episode_reads_as_the_template_would_write_it(name):
    template = TEMPLATES[name][0]
    ctx = context(template)
    t = play(ctx, ScriptedPolicy(SCRIPTS["oracle"], ctx))
    text = ctx.tokenizer.decode(t.token_ids.tolist())
    replies = [turn.reply for turn in t.turns]
    first, second = spans(t, ctx)
    assert text == first + replies[0] + second + replies[1]
    # the second reply's opening is the template's own, and no end token stands twice
    opening = ctx._render([{"role": "user", "content": "x"}]).rpartition("x")[2]
    assert second.endswith(opening[-8:])
    assert "<|im_end|><|im_end|>" not in text


def test_the_results_of_several_calls_are_all_shown_each_in_its_own_message():
    ctx = context(TEMPLATES["results in the user's turn"][0])
    calls = [write_call("calculator", {"expression": text}) for text in ("1 + 1", "5 * 5", "2 * 4")]
    t = play(ctx, Replies(ctx.reply_ids(calls)))
    assert t.turns[0].actions == tuple(calls)
    assert spans(t, ctx)[1] == (
        "\n<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n25\n</tool_response><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nReward: 0\nTurn 2 of 4, actions left: 7\n8\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_without_a_place_for_results_the_user_tells_them():
    ctx = context(TEMPLATES["role refused"][0])
    calls = [write_call("calculator", {"expression": text}) for text in ("1 + 1", "5 * 5")]
    t = play(ctx, Replies(ctx.reply_ids(calls)))
    assert spans(t, ctx)[1] == (
        "\n<|im_start|>user\n2\nReward: 0\nTurn 2 of 4, actions left: 8\n25<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("reply", "executed", "penalty", "note"),
    [
        ("no call", 0, -0.1, "did not follow the format"),
        ("<tool_call>{}</tool_call>", 0, -0.1, "did not follow the format"),
        (
            f"<tool_call>{write_call('nothing', {})}</tool_call>",
            0,
            -0.1,
            'Unknown actions were ignored: {"name": "nothing"',
        ),
        (f"<tool_call>{write_call('calculator', {'expression': '1'})}</tool_call>" * 4, 3, 0.0, "Only the first 3"),
        (f"<tool_call>{write_call('calculator', {'expressio': '1'})}</tool_call>", 1, 0.0, ""),
    ],
)
def test_replies_that_call_no_tool_are_told_so_by_the_user(reply, executed, penalty, note):
    ctx = context(TEMPLATES["results in the user's turn"][0])
    t = play(ctx, Replies(ctx.tokenizer(reply)["input_ids"]))
    turn, suffix = t.turns[0], spans(t, ctx)[1]
    assert (len(turn.actions), turn.format_penalty) == (executed, penalty)
    assert note in suffix and ("<tool_response>" in suffix) == bool(executed)


def test_tools_are_played_in_any_reply_format():
    for parser in ("think_answer", "raw"):
        ctx = context(parser=parser)
        t = play(ctx, ScriptedPolicy(SCRIPTS["oracle"], ctx))
        assert t.metrics["success"] == 1.0 and t.metrics["action_is_valid"] == 1.0
        assert "Tools, one JSON schema a line" in spans(t, ctx)[0]


def test_raw_drops_the_end_token_and_keeps_the_rest():
    ctx = context(parser="raw")
    text, parsed = ctx.parse(ctx.tokenizer("go north<|im_end|>")["input_ids"])
    assert text == "go north<|im_end|>" and parsed.actions == ("go north",)
    assert ctx.parse(ctx.tokenizer("go <|im_end|> north")["input_ids"])[1].actions == ("go <|im_end|> north",)


def test_a_format_with_tools_refuses_an_environment_without():
    ctx = context()
    entry = {"env_type": "bandit"}
    es = EnvStateManager(load_specs({"B": entry}), Split(1, 1, ("B",), (1,)), run_seed=1, base_seed=5)
    with pytest.raises(ValueError, match="parser=tool_call needs an environment with tools"):
        play(ctx, Replies([1]), es)


def test_wording_shapes_every_line_and_an_empty_one_goes():
    wording = Wording(
        reward="", reply_format="FORMAT {format}", call="CALL", more_calls=" x{limit}", turn="{observation}", tools=""
    )
    ctx = context(CHATML, wording=wording, format_reminder=True)
    t = play(ctx, ScriptedPolicy(SCRIPTS["oracle"], ctx))
    first, second = spans(t, ctx)
    question = t.turns[0].observation
    assert first.endswith(
        f"10 calls.\nFORMAT <tool_call>CALL</tool_call> x3\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert second.startswith(f"\n<|im_start|>tool\n{json.loads(t.turns[1].actions[0])['arguments']['answer']}\nFORMAT")


def test_half_a_character_in_an_observation_does_not_stop_a_run():
    ctx = context(parser="raw")
    ids = ctx.suffix_ids([1], "a\ud800b", turn=1, reward=0.0, actions_left=1, notes=())
    assert "a?b" in ctx.tokenizer.decode(ids)


# --- calls and schemas ------------------------------------------------------------------------------------------------


@given(st.text(max_size=5), st.dictionaries(st.text(max_size=4), st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4)),
    lambda value: st.lists(value, max_size=2), max_leaves=3,
), max_size=3))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_a_call_that_is_written_is_read_again(name, arguments):
    assert read_call(write_call(name, arguments)) == (name, arguments)


@pytest.mark.parametrize(
    "tools",
    [
        [], [1], "x", [{"type": "function"}], [tool("a", "b"), tool("a", "c")], [tool("", "b")],
        [{"function": {"name": object()}}], [tool("a", float("nan"))],
    ],
)  # fmt: skip
def test_schemas_that_no_template_could_show_are_refused(tools):
    with pytest.raises(ValueError, match=r"tools\(\) must return"):
        check_tools(tools)


def test_bad_tools_cost_the_episode_not_the_run():
    es = EnvStateManager(
        load_specs({"Bad": {"env_type": "tests.llm_agent.bad_tools_env:BadTools"}}),
        Split(1, 1, ("Bad",), (1,)), run_seed=1, base_seed=5,
    )  # fmt: skip
    t = play(context(), Replies([1]), es)
    assert (t.status, t.end_reason) == ("failed", "env_raised")


# --- the hash of what shapes prompts ---------------------------------------------------------------------------------


def hashed(ctx, **entry):
    return prompt_hash(prompt_settings(ctx, load_specs({"C": {"env_type": "calculator", **entry}})))


def test_the_hash_follows_what_shapes_prompts_and_nothing_else():
    base = hashed(context())
    assert base == hashed(context()) == hashed(context(max_model_len=9000, stop=("x",), use_turn_scores=True))
    changed = [
        hashed(context(CHATML + " ")),
        hashed(context(system_prompt="S")),
        hashed(context(parser="raw")),
        hashed(context(wording=Wording(turn="{observation}"))),
        hashed(context(max_turn=5)),
        hashed(context(chat_template_kwargs={"enable_thinking": False})),
        hashed(context(), env_config={"operations": 5}),
        hashed(context(), env_instruction="Play."),
        hashed(context(), max_actions_per_traj=3),
    ]
    assert len({base, *changed}) == 1 + len(changed)


def test_a_runs_folder_tells_its_prompts_and_a_resumed_run_that_they_changed(tmp_path, caplog):
    specs = load_specs({"C": {"env_type": "calculator"}})
    digest = record_prompts(tmp_path, prompt_settings(context(), specs))
    record = json.loads((tmp_path / "prompts.json").read_text())
    assert record["prompt_hash"] == digest and record["context"]["parser"] == "tool_call"
    assert record_prompts(tmp_path, prompt_settings(context(), specs)) == digest and not caplog.text
    record_prompts(tmp_path, prompt_settings(context(max_turn=2), specs))
    assert "the prompts have changed since this run began" in caplog.text


def test_masks_are_read_off_turns_with_several_results():
    ctx = context(TEMPLATES["results in the user's turn"][0], use_turn_scores=True)
    calls = [write_call("calculator", {"expression": "1 + 1"})] * 2
    t = play(ctx, Replies(ctx.reply_ids(calls), ctx.reply_ids([write_call("finish", {"answer": -1})])))
    assert t.num_turns == 2 and t.end_reason == "terminated"
    assert np.array_equal(np.flatnonzero(np.diff(t.policy_mask.astype(int)) == -1)[:1], t.turn_ends()[:1])
