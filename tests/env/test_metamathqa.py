"""MetaMathQA: which answers are the same, rewards by hand, our own problems and those of files."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.env.metamathqa.answers import last_number, same_answer, stated_answer
from ragen.env.metamathqa.env import OWN_PROBLEMS, MetaMathQA, MetaMathQAConfig
from ragen.env.problem_files import load_problems


@pytest.mark.parametrize(
    ("given_answer", "expected"),
    [
        ("42", "42"), ("42.0", "42"), (" 42. ", "42"), ("$42", "42"), ("1,234", "1234"), ("1234", "1,234"),
        ("50%", "50"),
        ("50", "50\\%"), ("-5", "-5"), ("− 5", "-5"), ("3/4", "0.75"), (".75", "3/4"), ("\\frac{3}{4}", "3/4"),
        ("\\dfrac34", "0.75"), ("2 1/2", "2.5"), ("1e3", "1000"), ("x = 7", "7"), ("7", "x=7"), ("42 apples", "42"),
        ("5", "5 \\text{ cm}"), ("the answer is 42", "42"), ("\\boxed{42}", "42"), ("3 + 4 = 7", "7"), ("9-4", "4"),
        ("(-4)", "-4"), ("90°", "90^\\circ"), ("90", "90^{\\circ}"), ("x^2+1", "x^2 + 1"), ("A", "a"),
        ("\\boxed{\\sqrt{2}}", "\\sqrt{2}"), ("(1,2)", "(1, 2)"), ("100000000000000000001", "100000000000000000001"),
    ],
)  # fmt: skip
def test_the_same(given_answer, expected):
    assert same_answer(given_answer, expected)


@pytest.mark.parametrize(
    ("given_answer", "expected"),
    [
        ("43", "42"), ("-42", "42"), ("42 or 43", "42"), ("0.33", "1/3"), ("0.5", "50%"), ("", "42"),
        ("forty-two", "42"), ("x42", "42"), ("\\sqrt{2}", "2"), ("3^2", "2"), ("1/0", "0"), ("5/0", "5"),
        ("x^2", "x^3"), ("", "x"), (" ", " "),
        ("9-4", "-4"), ("100000000000000000001", "100000000000000000002"), ("4" * 1001, "4"), ("٤٢", "42"),
    ],
)  # fmt: skip
def test_not_the_same(given_answer, expected):
    assert not same_answer(given_answer, expected)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Half of 8 is 4.\nThe answer is: 4", "4"),
        ("We get #### 12\n#### 13", "13"),
        ("So it is $\\boxed{\\frac{1}{2}}$.\nThe answer is: 1/2", "\\frac{1}{2}"),
        ("17", "17"),
        ("never closed \\boxed{3", "never closed \\boxed{3"),
    ],
)
def test_the_answer_in_a_solution(text, answer):
    assert stated_answer(text) == answer


@given(st.fractions(max_denominator=1000))
def test_any_fraction_is_read_back(value):
    assert last_number(f"It is {value}") == value
    assert same_answer(str(value), str(value)) and not same_answer(str(value + 1), str(value))


@settings(deadline=200)
@given(st.text(max_size=1200), st.sampled_from(["42", "x^2", "\\frac{1}{2}"]))
def test_any_text_is_judged_at_once(text, expected):
    assert isinstance(same_answer(text, expected), bool)
    assert isinstance(stated_answer(text), str)


def test_the_reward_halves_with_each_wrong_answer():
    env = MetaMathQA(MetaMathQAConfig(max_steps=9))
    for wrong in range(5):
        env.load_problem("How many?", "12")
        for n in range(wrong):
            observation, reward, terminated, truncated, info = env.step(str(n))
            assert (reward, terminated, truncated) == (0.0, False, False)
            assert observation == env.render() == f"How many?\nWrong answers so far: {n + 1}"
            assert info == {"action_is_valid": True, "action_is_effective": True, "success": False}
        assert env.step("no idea")[4]["action_is_valid"] is False  # no answer, so it halves nothing
        assert env.oracle_action() == "12"
        _, reward, terminated, truncated, info = env.step("It is 12.")
        assert (reward, terminated, truncated, info["success"]) == (0.5**wrong, True, False, True)
        assert env.oracle_action() is None
        with pytest.raises(RuntimeError, match="call reset first"):
            env.step("12")


def test_the_step_limit_truncates():
    env = MetaMathQA(MetaMathQAConfig(max_steps=3))
    env.reset(0)
    ends = [env.step(text)[2:4] for text in ("", "x", "-1000000")]
    assert ends == [(False, False), (False, False), (False, True)]


ABSURD = ["", " \n", "<|im_end|>", "</answer>", "\x00", "\ud800", "; rm -rf /", "a" * 100_000, "1" * 100_000,
          "{" * 100_000, "\\boxed{" * 30_000, "٤", None, 99, b"1"]  # fmt: skip


@pytest.mark.parametrize("text", ABSURD, ids=lambda text: repr(text)[:20])
def test_absurd_actions_are_invalid_at_once(text):
    env = MetaMathQA()
    env.reset(1)
    before = env.render()
    start = time.process_time()
    observation, reward, terminated, truncated, info = env.step(text)
    assert time.process_time() - start < 0.05
    assert (observation, reward, terminated, truncated) == (before, 0.0, False, False)
    assert info == {"action_is_valid": False, "action_is_effective": False, "success": False}


def test_our_own_problems_come_each_once_and_have_numbers_as_answers():
    env = MetaMathQA()
    count = len(load_problems(str(OWN_PROBLEMS)))
    assert count >= 60
    questions = set()
    for seed in range(count):
        question, _ = env.reset(seed)
        questions.add(question)
        assert last_number(env.answer) is not None
        assert env.step(env.oracle_action())[1] == 1.0
    assert len(questions) == count


def test_random_answers_are_valid_and_seldom_right():
    env, rng, right = MetaMathQA(), np.random.default_rng(0), 0
    for seed in range(64):
        env.reset(seed)
        *_, info = env.step(env.random_action(rng))
        assert info["action_is_valid"]
        right += info["success"]
    assert right < 10


def _parquet(path, rows):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def test_metamaths_own_columns_from_parquet(tmp_path):
    path = tmp_path / "train.parquet"
    _parquet(
        path, [{"query": f"{n} + {n}?", "response": f"Add.\nThe answer is: {2 * n}", "type": "x"} for n in range(9)]
    )
    env = MetaMathQA(MetaMathQAConfig(path=str(path)))
    for seed in range(18):
        question, _ = env.reset(seed)
        assert env.answer == str(2 * int(question.split()[0]))


def test_named_columns_from_jsonl(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps({"q": "1 + 1?", "question": "no", "a": 2}) for _ in range(3)) + "\n\n")
    env = MetaMathQA(MetaMathQAConfig(path=str(path), question_key="q", answer_key="a"))
    assert env.reset(5)[0] == "1 + 1?"
    assert env.step("2")[1] == 1.0


def test_a_hub_dataset_is_loaded_by_name_split_and_subset(tmp_path, monkeypatch):
    """A dataset repository in a folder: `datasets` loads it by the same call as one on the hub."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    repository = tmp_path / "repository"
    repository.mkdir()
    for split, answer in (("train", "1"), ("test", "2")):
        _parquet(
            repository / f"{split}-00000-of-00001.parquet", [{"question": f"{split}?", "answer": f"#### {answer}"}]
        )
    env = MetaMathQA(MetaMathQAConfig(path=str(repository), split="test"))
    assert env.reset(0)[0] == "test?" and env.answer == "2"
    with pytest.raises(ValueError, match=r"as a Hugging Face dataset \(split 'dev'\) it cannot be loaded"):
        MetaMathQA(MetaMathQAConfig(path=str(repository), split="dev")).reset(0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", None, "no such file exists"),
        ("a.jsonl", "", "holds no problems"),
        ("a.jsonl", '{"question": 1}\nnot json', "line 2 is not JSON"),
        ("a.jsonl", "[1]", "line 1 must be a JSON object, got list"),
        (
            "a.jsonl",
            '{"text": "x", "answer": "1"}',
            "has no question, query, problem, prompt in a row with text, answer",
        ),
        ("a.parquet", "not parquet", "cannot be read as parquet"),
    ],
)
def test_a_source_that_cannot_be_used_says_why(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        MetaMathQA(MetaMathQAConfig(path=str(path))).reset(0)


def test_a_senseless_limit_is_refused():
    with pytest.raises(ValueError, match="max_steps is 0"):
        MetaMathQAConfig(max_steps=0)
