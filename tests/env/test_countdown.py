"""Countdown: the parser's bounds, rewards by hand, solvable problems, problems from files."""

import json
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.env.countdown.arithmetic import ArithmeticFault, evaluate, join
from ragen.env.countdown.env import Countdown, CountdownConfig
from ragen.env.countdown.problems import Problem, solve


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("1 + 2 * 3", 7, [1, 2, 3]),
        ("(1+2)*3", 9, [1, 2, 3]),
        ("8/4/2", 1, [8, 4, 2]),
        ("8-4-2", 2, [8, 4, 2]),
        ("7/2", Fraction(7, 2), [7, 2]),
        ("-(3 - 5) × 6 ÷ 4", 3, [3, 5, 6, 4]),
        ("2--3", 5, [2, 3]),
        ("007", 7, [7]),
        ("5/(3-3)", None, [5, 3, 3]),
        ("1 + 1/0", None, [1, 1, 0]),
    ],
)
def test_arithmetic_by_hand(text, value, numbers):
    assert evaluate(text) == (value, numbers)


ABSURD = [
    "", " ", "=", "()", "(1", "1)", "1 +", "* 1", "1 2", "2**3", "9**9**9**9", "1 // 2", "2^3", "abs(3)", "x", "1.5",
    "1e9", "__import__('os').system('true')", "<|im_end|>", "</answer>", "١+٢", "½", "1 + 2 𝟛", "\x00", "1" * 7,
    "+".join("1" * 17), "(" * 21 + "1" + ")" * 21, "-" * 30 + "1", "1+" * 50_000 + "1", "(" * 100_000, "\ud800",
    None, 99, b"1",
]  # fmt: skip


@pytest.mark.parametrize("text", ABSURD, ids=lambda text: repr(text)[:20])
def test_absurd_actions_are_invalid_at_once(text):
    env = Countdown()
    env.reset(1)
    before = env.render()
    start = time.process_time()
    observation, reward, terminated, truncated, info = env.step(text)
    assert time.process_time() - start < 0.05
    assert (observation, reward, terminated, truncated) == (before, 0.0, False, False)
    assert info == {"action_is_valid": False, "action_is_effective": False, "success": False}
    assert env.step(env.oracle_action())[1] == 1.0


def test_what_is_at_the_bounds_is_read():
    assert evaluate("+".join("1" * 16)).value == 16
    assert evaluate("999999*" * 15 + "999999").value == 999999**16
    assert evaluate("(" * 20 + "1" + ")" * 20).value == 1


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="0123456789+-*/() =", max_size=40))
def test_the_parser_agrees_with_python(text):
    python_only = "**" in text or "//" in text or any(len(n) > 1 and n[0] == "0" for n in _numbers(text)) or "=" in text
    try:
        value = evaluate(text).value
    except ArithmeticFault:
        return
    assert "=" not in text
    if not python_only and value is not None and "+" not in text.lstrip()[:1]:
        assert float(value) == pytest.approx(eval(text.strip()), rel=1e-9, abs=1e-9)  # digits and signs alone


def _numbers(text):
    return "".join(c if c.isdigit() else " " for c in text).split()


@given(st.recursive(st.integers(0, 99).map(str), lambda inner: st.tuples(st.sampled_from("+-*/"), inner, inner)))
def test_joining_keeps_the_meaning(tree):
    def text(node):
        return node if isinstance(node, str) else join(node[0], text(node[1]), text(node[2]))

    def bracketed(node):
        return node if isinstance(node, str) else f"({bracketed(node[1])}){node[0]}({bracketed(node[2])})"

    try:
        expected = evaluate(bracketed(tree))
        found = evaluate(text(tree))
    except ArithmeticFault:
        return  # beyond the bounds
    assert found == expected


@pytest.mark.parametrize(
    ("action", "reward"),
    [
        ("(8 - 3) * 4", 1.0),
        ("4*(8-3)=20", 1.0),
        ("8*4-12/1", 0.0),  # other numbers
        ("4*8-3", 0.1),
        ("4*8-3=20", 0.1),
        ("4*(8-3)=21", 0.1),  # a false equation
        ("4*(8-3)=1/0", 0.1),
        ("8/(4-4)", 0.0),
        ("8-3-4", 0.1),
        ("4*(8-3)*1", 0.0),
        ("20", 0.0),
        ("4*5", 0.0),
    ],
)
def test_rewards_by_hand(action, reward):
    env = Countdown()
    env.load_problem(Problem(20, (3, 4, 8)))
    observation, paid, terminated, truncated, info = env.step(action)
    assert (paid, terminated, truncated) == (reward, True, False)
    assert info == {"action_is_valid": True, "action_is_effective": True, "success": reward == 1.0}
    assert observation == env.render()
    assert env.oracle_action() is None
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step(action)


def test_a_division_by_zero_with_the_right_numbers():
    env = Countdown()
    env.load_problem(Problem(20, (5, 3, 3)))
    observation, reward, *_ = env.step("5/(3-3)")
    assert (reward, "division by zero" in observation) == (0.1, True)


def test_a_stated_undefined_result_is_not_the_target():
    env = Countdown()
    env.load_problem(Problem(20, (5, 3, 3)))
    assert env.step("5/(3-3)=1/0")[1] == 0.1


def test_every_problem_is_in_range_and_solved_by_its_oracle():
    env = Countdown()
    counts, starts = set(), set()
    for seed in range(400):
        starts.add(env.reset(seed)[0])
        target, numbers = env.problem
        counts.add(len(numbers))
        assert 1 <= target <= 100 and all(1 <= n <= 99 for n in numbers) and target not in numbers
        assert env.step(env.oracle_action())[1] == 1.0
    assert counts == {3, 4} and len(starts) >= 399


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=4), st.data())
def test_the_solver_finds_what_exists(numbers, data):
    text = str(numbers[0])
    for number in numbers[1:]:
        text = join(data.draw(st.sampled_from("+-*/")), text, str(number))
    value = evaluate(text).value
    if value is None or value.denominator != 1 or value < 0:
        return
    found = evaluate(solve(Problem(int(value), tuple(numbers))))
    assert (found.value, sorted(found.numbers)) == (value, sorted(numbers))


def test_the_solver_knows_fractions_and_gives_up_in_time():
    assert evaluate(solve(Problem(24, (3, 3, 8, 8)))).value == 24  # only 8 / (3 - 8/3)
    assert solve(Problem(1000, (1, 1, 1))) is None
    start = time.process_time()
    solve(Problem(999_983, (3, 7, 11, 13, 17, 19, 23, 29)))
    assert time.process_time() - start < 5


def test_random_actions_use_the_numbers():
    env, rng = Countdown(), np.random.default_rng(0)
    rewards = []
    for seed in range(100):
        env.reset(seed)
        rewards.append(env.step(env.random_action(rng))[1])
    assert set(rewards) <= {0.1, 1.0} and np.mean(rewards) < 0.3


def _write(tmp_path, kind, rows):
    path = tmp_path / f"problems.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_problems_from_a_file(tmp_path, kind):
    rows = [{"target": 10 + n, "nums": [3, 7, n]} for n in range(1, 21)]
    env = Countdown(CountdownConfig(path=_write(tmp_path, kind, rows)))
    for deal in (range(20), range(20, 40)):
        targets = []
        for seed in deal:
            observation, _ = env.reset(seed)
            targets.append(env.problem.target)
            assert observation.startswith(f"Target: {targets[-1]}\nNumbers: 3, 7, ")
            assert env.step(env.oracle_action())[1] == 1.0
        assert sorted(targets) == [row["target"] for row in rows] != targets  # each once, shuffled


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"target": 3}, r"row 0: nums is 'None'"),
        ({"target": 3, "nums": "1,2"}, r"nums is '1,2'"),
        ({"target": 2.5, "nums": [1, 2]}, r"'2.5' is no whole number"),
        ({"target": 3, "nums": [1] * 9}, r"list of 1 to 8"),
        ({"target": 3, "nums": [True, 2]}, r"'True' is no whole number"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, message):
    env = Countdown(CountdownConfig(path=_write(tmp_path, "jsonl", [row])))
    with pytest.raises(ValueError, match=message):
        env.reset(0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_numbers": 5}, "min_numbers is 5 and max_numbers 4"),
        ({"max_numbers": 7}, "max_numbers 7"),
        ({"max_number": 1}, "max_number is 1"),
        ({"max_target": 98}, "max_target is 98, below max_number 99"),
        ({"max_target": 20_000}, "max_target 20000"),
    ],
)
def test_senseless_configs_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        CountdownConfig(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"min_numbers": 6, "max_numbers": 6, "max_number": 1000, "max_target": 1000},
        {"min_numbers": 2, "max_numbers": 2, "max_number": 2, "max_target": 10},
        {"min_numbers": 6, "max_numbers": 6, "max_number": 10, "max_target": 10},
    ],
    ids=str,
)
def test_generation_succeeds_at_the_edges_of_the_config(values):
    env = Countdown(CountdownConfig(**values))
    for seed in range(100):
        env.reset(seed)
        assert env.step(env.oracle_action())[1] == 1.0
