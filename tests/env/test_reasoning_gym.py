"""The reasoning_gym adapter: its tasks and verifiers, and what must not reach them."""

import ast
import inspect
import random
import time

import numpy as np
import pytest

from ragen.env import EnvConfigError, make_env
from ragen.env.reasoning_gym.answers import EXPRESSION_TASKS, LITERAL_TASKS, may_be_evaluated

pytestmark = pytest.mark.timeout(600)  # the first import of the package may take long on a busy machine


@pytest.fixture(scope="module")
def package():
    return pytest.importorskip("reasoning_gym", reason="the extra 'reasoning-gym' is not installed")


@pytest.mark.parametrize(
    "task, answer",
    [
        ("countdown", "(3 + 4) * 5 - 6/2"),
        ("puzzle24", "8 / (3 - 8/3)"),
        ("simple_integration", "x**3/3 + 5*x**2 + C"),
        ("intermediate_integration", "-exp(-2*x)/2 + log(Abs(x)) + (x**2 + 1)**(3/2) + C"),
        ("polynomial_multiplication", "-6*x**4 + 12*x*y**2 - z**63"),
        ("n_queens", "_ Q _ _\n_ _ _ Q"),
        ("n_queens", "[['_', 'Q'], ['Q', '_']]"),
        ("binary_matrix", "[[0, 1], [1, 2]]"),
        ("spiral_matrix", "1 2 3 4"),
        ("string_insertion", "ABCDABE"),
        ("chain_sum", "__import__('os')"),  # its verifier only compares
    ],
)
def test_answers_that_a_verifier_may_see(task, answer):
    assert may_be_evaluated(task, answer)


@pytest.mark.parametrize("task", sorted(LITERAL_TASKS | EXPRESSION_TASKS))
@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os').system('true')", "open('x', 'w')", "exec('1')", "().__class__.__bases__", "[x for x in (1,)]",
        "9**9**9**9", "(9**999)**999", "((9**64 + x - x)**64)**64", "2**(x - x + 64*64*64)", "'%999999999d' % 1",
        "factorial(99999)", "x.diff", "lambda: 0", "(" * 500, "-" * 5000 + "1", "1" * 3000 + "*1", "2**1e300",
    ],
)  # fmt: skip
def test_answers_that_no_verifier_may_see(task, answer):
    began = time.perf_counter()
    assert not may_be_evaluated(task, answer)
    assert time.perf_counter() - began < 1


def test_no_verifier_evaluates_answers_unguarded(package):
    """Every class of the package whose `score_answer` names eval, exec or parse_expr is on one of the two lists."""
    from reasoning_gym.factory import DATASETS

    found = set()
    for task, (cls, _) in DATASETS.items():
        source = inspect.getsource(cls.score_answer)
        tree = ast.parse("if 1:\n" + source)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        names = {getattr(call.func, "id", getattr(call.func, "attr", "")) for call in calls}
        if names & {"eval", "exec", "parse_expr", "sympify"}:
            found.add(task)
    assert found - {"number_sorting"} == LITERAL_TASKS | EXPRESSION_TASKS  # it evaluates its own answer only


def test_the_oracle_is_right_and_the_score_is_the_verifiers(package):
    for task in ("countdown", "chain_sum", "simple_integration", "n_queens", "spell_backward"):
        env = make_env("reasoning_gym", {"task": task})
        for seed in (1, 2):
            question, _ = env.reset(seed)
            theirs = package.create_dataset(task, seed=0, size=1)
            entry = theirs[seed]
            assert question == entry["question"] and env.oracle_action() == entry["answer"]
            copy = make_env("reasoning_gym", {"task": task})
            assert copy.reset(seed, luck=4)[0] == question  # members get one question
            assert copy.step("no such answer")[1] == theirs.score_answer("no such answer", entry)
            _, reward, terminated, truncated, info = env.step(env.oracle_action())
            assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
            with pytest.raises(RuntimeError, match="call reset first"):
                env.step("again")


@pytest.mark.parametrize("task", ["list_functions", "pool_matrix", "word_ladder", "acre"])
def test_tasks_that_draw_globally_or_beforehand(package, task):
    states = random.getstate(), np.random.get_state()[1].tolist()
    one, other = make_env("reasoning_gym", {"task": task}), make_env("reasoning_gym", {"task": task})
    seen = {one.reset(seed)[0] for seed in range(700, 705)}
    assert len(seen) > 1 and one.reset(702)[0] == other.reset(702)[0]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states


def test_absurd_answers(package):
    for task in ("countdown", "prime_factorization", "propositional_logic", "boxnet"):
        env = make_env("reasoning_gym", {"task": task})
        for answer in ("9**9**9**9", "[1,2", "\udc80\x00☃", "<|im_end|>" * 500, "¬" * 5000, "((((((", "9" * 9000):
            env.reset(3)
            _, reward, terminated, _, info = env.step(answer)
            assert 0 <= reward < 1 and terminated and info["action_is_valid"]
        env.reset(3)
        for answer in ("", "  \n", "x" * 100_000, None, 7):
            assert env.step(answer)[1:4] == (0.0, False, False)


def test_a_slow_verifier_is_cut_off(package, monkeypatch):
    env = make_env("reasoning_gym", {"task": "chain_sum", "score_limit_s": 0.2})
    env.reset(1)
    from ragen.env.reasoning_gym.env import _dataset

    monkeypatch.setattr(_dataset(*env._key), "score_answer", lambda *_: time.sleep(30), raising=False)
    began = time.monotonic()
    assert env.step("5")[1:3] == (0.0, True)
    assert time.monotonic() - began < 10


def test_several_tasks_in_one(package):
    parts = [{"name": "chain_sum"}, {"name": "gcd", "weight": 2.0, "config": {"max_numbers": 3}}]
    env = make_env("reasoning_gym", {"task": "composite", "config": {"datasets": parts}})
    assert {env.reset(seed)[1]["task"] for seed in range(30)} == {"chain_sum", "gcd"}
    assert env.step(env.oracle_action())[1] == 1.0


def test_faulty_configs(package):
    with pytest.raises(EnvConfigError, match="'countdwon' is no task of reasoning_gym: did you mean 'countdown'"):
        make_env("reasoning_gym", {"task": "countdwon"})
    with pytest.raises(EnvConfigError, match="config of the reasoning_gym task 'countdown' cannot be used.*nonsense"):
        make_env("reasoning_gym", {"config": {"nonsense": 1}})
    with pytest.raises(EnvConfigError, match="config has 'seed'"):
        make_env("reasoning_gym", {"config": {"seed": 1}})
