"""The calculator's problems, calls by hand, and calls that cannot be made."""

import json
import time

import pytest

from ragen.env.calculator.env import Calculator, CalculatorConfig
from ragen.env.countdown.arithmetic import evaluate
from ragen.env.tools import check_tools, tool_names, write_call


def env_of(seed=1, **config):
    env = Calculator(CalculatorConfig(**config))
    env.reset(seed)
    return env


@pytest.mark.parametrize("style", ["words", "expression"])
@pytest.mark.parametrize(("operations", "max_number"), [(1, 2), (3, 99), (8, 999)])
def test_every_problem_is_solved_by_its_expression(style, operations, max_number):
    for seed in range(60):
        env = env_of(seed, style=style, operations=operations, max_number=max_number)
        assert evaluate(env.problem.expression).value == env.problem.answer
        assert 0 <= env.problem.answer <= 9999
        numbers = evaluate(env.problem.expression).numbers
        assert len(numbers) == operations + 1 and max(numbers) <= max(9, max_number)
        text = env.render()
        shown = text.count("Then") if style == "words" else len(numbers) - 1
        assert shown == operations and (env.problem.expression in text) == (style == "expression")


def test_the_story_tells_the_same_problem():
    env = env_of(2)
    assert env.render() == (
        "Chi has 84 apples. Then Chi gets 41 more. Then Chi swaps each for 5 of them. Then Chi gets 34 more. "
        "How many apples does Chi have now?"
    )
    assert (env.problem.expression, env.problem.answer) == ("(84 + 41) * 5 + 34", 659)


def test_an_episode_by_hand():
    env = env_of(2)
    steps = [
        (write_call("calculator", {"expression": "84 + 41"}), "125", 0.0, False, True),
        (write_call("calculator", {"expression": "(1 - 2) / 3"}), "-1/3, about -0.333333", 0.0, False, True),
        (write_call("calculator", {"expression": "1 / 0"}), "Error: division by zero", 0.0, False, True),
        (write_call("calculator", {"expression": "84 +"}), "Error: a number is missing", 0.0, False, False),
        (write_call("finish", {"answer": 659}), "Right.", 1.0, True, True),
    ]
    for action, observation, reward, over, valid in steps:
        seen = env.step(action)
        assert seen[:4] == (observation, reward, over, False)
        assert seen[4] == {"action_is_valid": valid, "action_is_effective": valid, "success": over}
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(steps[0][0])


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("659", 1.0), (" 659.0 ", 1.0), (659.0, 1.0), (658, 0.0), (-659, 0.0), ("6.59", 0.0), (10**40, 0.0)],
)
def test_an_answer_may_be_a_number_or_digits(answer, reward):
    seen = env_of(2).step(write_call("finish", {"answer": answer}))
    assert seen[1:3] == (reward, True) and seen[4]["success"] == (reward == 1.0)


ABSURD_CALLS = [
    ("calculator", {}),
    ("calculator", {"expression": 1}),
    ("calculator", {"answer": "1"}),
    ("calculator", {"expression": "1", "x": 1}),
    ("calculator", {"expression": "9**9**9"}),
    ("calculator", {"expression": "1+" * 100_000 + "1"}),
    ("calculator", {"expression": "(" * 99}),
    ("calculator", {"expression": "__import__('os')"}),
    ("Finish", {"answer": 659}),
    ("finish", {}),
    *(("finish", {"answer": answer}) for answer in (None, True, [659], "659 apples", "9" * 5000, "")),
]
ABSURD = [
    *(write_call(*call) for call in ABSURD_CALLS),
    "", " ", "calculator", "659", "{}", "[]", "null", None, 99, b"1", "\x00", "\ud800", "{" * 100_000, "[" * 100_000,
    '{"name": "finish", "arguments": {"answer": 1e999}}', '{"name": "finish", "arguments": {"answer": NaN}}',
    "<|im_end|>",
]  # fmt: skip


@pytest.mark.parametrize("action", ABSURD, ids=lambda action: repr(action)[:40])
def test_what_is_no_call_is_invalid_and_changes_nothing(action):
    env = env_of(2)
    before = env.render()
    started = time.process_time()
    observation, reward, terminated, truncated, info = env.step(action)
    assert time.process_time() - started < 0.05
    assert observation.startswith("Error: ") and len(observation) < 200
    assert (reward, terminated, truncated, env.render()) == (0.0, False, False, before)
    assert info == {"action_is_valid": False, "action_is_effective": False, "success": False}


def test_calls_are_limited():
    env = env_of(2, max_steps=2)
    assert env.step("x")[2:4] == (False, False)
    assert env.step("x")[2:4] == (False, True)


def test_the_oracle_works_it_out_and_hands_it_in():
    for seed in range(20):
        env = env_of(seed)
        assert env.step(env.oracle_action())[0] == str(env.problem.answer)
        assert env.step(env.oracle_action())[1:3] == (1.0, True)
        assert env.oracle_action() is None


def test_tools_are_what_step_takes():
    tools = check_tools(env_of().tools())
    assert tool_names(tools) == ["calculator", "finish"]
    assert json.dumps(tools)
    assert all(entry["function"]["parameters"]["required"] for entry in tools)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"style": "x"}, "style"), ({"operations": 0}, "operations"), ({"operations": 9}, "operations is 9"),
        ({"max_number": 1}, "max_number"), ({"max_number": 1000}, "max_number is 1000"),
        ({"max_steps": 0}, "max_steps"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_work_is_refused(config, words):
    with pytest.raises(ValueError, match=words):
        CalculatorConfig(**config)
