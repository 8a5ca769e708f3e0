"""Reply formats: what each reads and writes, in time that does not depend on what a reply says."""

import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.llm_agent.ctx_manager import ContextConfig
from ragen.llm_agent.replies import PARSERS, ParsedReply, ReplyFormat, register_parser, reply_format
from ragen.llm_agent.wording import FIELDS, Wording, faults


def config(**changes) -> ContextConfig:
    return ContextConfig(
        **{"max_model_len": 99, "response_length": 9, "max_turn": 2, "max_actions_per_turn": 2, **changes}
    )


CALL = '{"name": "f", "arguments": {"x": 1}}'
PIECES = [
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<tool_call>",
    "</tool_call>",
    " ",
    "\n",
    "a",
    "||",
    CALL,
    "<|im_end|>",
]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14), st.booleans())
def test_think_answer_reads_the_first_pair_of_tags(pieces, think):
    reply = "".join(pieces)
    answer = r"<answer>(.*?)</answer>"
    match = re.search(rf"<think>(.*?)</think>\s*{answer}" if think else rf"(){answer}", reply, re.DOTALL)
    expected = ParsedReply((), False)
    if match is not None:
        actions = tuple(text for part in match.group(2).split("||") if (text := part.strip()))
        expected = ParsedReply(actions, True, match.group(1).strip())
    assert PARSERS["think_answer"].parse(reply, config(enable_think=think)) == expected


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(PARSERS)), st.lists(st.sampled_from(PIECES), max_size=14), st.booleans())
def test_no_reply_makes_a_parser_raise(name, pieces, think):
    parsed = PARSERS[name].parse("".join(pieces), config(enable_think=think))
    assert parsed.well_formed or not parsed.actions
    assert all(action == action.strip() != "" for action in parsed.actions)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(sorted(PARSERS)), st.booleans(), st.text("abc é<>/", max_size=9),
    st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5), st.none()), max_size=3),
)  # fmt: skip
def test_what_a_format_writes_it_reads(name, think, thought, arguments):
    action = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=False)
    format, settings = PARSERS[name], config(enable_think=think, action_sep="&&&")
    if "||" in action or any(piece in action for piece in ("<", ">")):
        action = CALL
    parsed = format.parse(format.write([action], thought, settings), settings)
    assert parsed == ParsedReply((action,), True, thought.strip() if think else "")


@pytest.mark.parametrize("name", sorted(PARSERS))
@pytest.mark.parametrize("think", [True, False])
@pytest.mark.parametrize(
    "reply",
    [
        "<think>" * 40_000,
        "<think></think>" * 20_000,
        "<think></think><answer>" * 15_000,
        "<think>" + "</think> \n" * 30_000,
        "<think></think>" + "<tool_call>" * 30_000,
        "<think></think>" + f"<tool_call>{CALL}</tool_call>" * 4_000 + "<tool_call>",
        "<think></think><tool_call>" + "[" * 100_000 + "</tool_call>",
        "<think></think><tool_call>" + '{"a":' * 50_000 + "</tool_call>",
        "<answer>" + "||" * 100_000 + "</answer>",
    ],
    ids=lambda reply: reply[:30],
)
def test_long_replies_take_linear_time(name, think, reply):
    before = time.process_time()
    PARSERS[name].parse(reply, config(enable_think=think))
    assert time.process_time() - before < 1.0  # quadratic time would be minutes


def read(text, **changes):
    return PARSERS["tool_call"].parse(text, config(**{"enable_think": False, **changes}))


def test_calls_are_read_in_order_and_text_beside_them_is_ignored():
    parsed = read(
        f'First.\n<tool_call>\n{CALL}\n</tool_call>\nThen <tool_call>{{"arguments":{{}},"name":"g"}}</tool_call>'
    )
    assert parsed.well_formed and parsed.actions == (CALL, '{"name": "g", "arguments": {}}')


@pytest.mark.parametrize(
    "inside",
    [
        "", "f", "{}", "[]", '"f"', CALL[:-1], CALL + CALL, CALL + ",", '{"name": "f"}',
        '{"name": "f", "arguments": []}',
        '{"name": 1, "arguments": {}}', '{"name": "f", "arguments": {}, "id": 1}', "{'name': 'f', 'arguments': {}}",
        '{"name": "f", "arguments": "{}"}', '{"name": "f", "parameters": {}}', '{"name": "f", "arguments": {"x": NaN}}',
        '{"name": "f", "name": "g", "arguments": {}}', '{"name": "f", "arguments": {"x": 1, "x": 2}}',
        '{"name": "\\ud800", "arguments": {}}', '{"name": "f", "arguments": {"x": ' + "1" * 5000 + "}}",
        f"<tool_call>{CALL}",
    ],
)  # fmt: skip
def test_a_call_that_is_no_strict_json_spoils_the_reply(inside):
    good = f"<tool_call>{CALL}</tool_call>"
    assert read(f"{good}<tool_call>{inside}</tool_call>") == ParsedReply((), False)


@pytest.mark.parametrize("reply", ["", "no call", f"<tool_call>{CALL}", f"{CALL}</tool_call>", CALL])
def test_no_call_is_no_format(reply):
    assert not read(reply).well_formed


def test_thoughts_come_before_calls():
    call = f"<tool_call>{CALL}</tool_call>"
    assert not read(call, enable_think=True).well_formed
    assert read(f"<think> so </think>\n{call}", enable_think=True) == ParsedReply((CALL,), True, "so")
    # a call that the model only thinks about is none
    assert read(f"<think>{call}</think>{call}", enable_think=True).actions == (CALL,)


def test_raw_is_the_whole_reply_or_what_follows_the_thoughts():
    raw = PARSERS["raw"]
    assert raw.parse(" go || north\n", config(enable_think=False)) == ParsedReply(("go || north",), True)
    assert raw.parse("<think>a</think> go ", config()) == ParsedReply(("go",), True, "a")
    assert raw.parse("go", config()) == ParsedReply((), False)
    assert raw.parse("  ", config(enable_think=False)) == ParsedReply((), True)


def test_tags_have_the_names_that_are_configured():
    settings = config(think_tag="plan", answer_tag="act")
    format = PARSERS["think_answer"]
    assert format.describe(settings, 1) == "<plan>your thoughts</plan><act>your action</act>"
    assert format.parse("<plan>x</plan> <act>a || b</act>", settings) == ParsedReply(("a", "b"), True, "x")
    assert not format.parse("<think>x</think><answer>a</answer>", settings).well_formed


class Shout(ReplyFormat):
    """A format of a user's own."""

    def parse(self, reply, config):
        return ParsedReply((reply.rstrip("!"),), reply.endswith("!"))

    def describe(self, config, limit):
        return "your action!"

    def write(self, actions, thought, config):
        return f"{actions[0]}!"


class Unfinished(ReplyFormat):
    pass


def test_a_format_of_ones_own_is_named_by_its_class():
    assert type(reply_format("tests.llm_agent.test_replies:Shout")).__name__ == "Shout"
    for name, words in (
        ("tests.llm_agent.test_replies:Unfinished", "no subclass of .* with parse, describe and write"),
        ("tests.llm_agent.test_replies:config", "no subclass"),
        ("no_such_module:X", "cannot be imported"),
        ("nope", r"'nope' is not one of \['raw', 'think_answer', 'tool_call'\]"),
    ):
        with pytest.raises(ValueError, match=words):
            reply_format(name)
    with pytest.raises(ValueError, match="already registered to Raw"):
        register_parser("raw")(Shout)


def test_wording_says_which_fields_a_text_may_use():
    assert faults({}) == {} and faults(vars(Wording())) == {}
    found = faults({
        "reward": "{rewards}", "turn": "{turn}", "thougts": "x", "actions": "{actions", "several_actions": "{limit:q}",
        "reply_format": None, "tools": "{0}", "more_calls": "{limit.real}",
    })  # fmt: skip
    assert set(found) == {
        "reward", "turn", "thougts", "actions", "several_actions", "reply_format", "tools", "more_calls",
    }  # fmt: skip
    assert "it may use {reward}" in found["reward"] and "without {observation}" in found["turn"]
    with pytest.raises(ValueError, match="agent_proxy.wording.reward: it may use"):
        Wording.of({"reward": "{rewards}"})
    assert set(FIELDS) <= set(vars(Wording()))
