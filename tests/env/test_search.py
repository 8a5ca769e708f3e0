"""SearchQA: scores by hand, searching, the package's own questions, files, and a retrieval service."""

import contextlib
import json
import pickle
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.env.problem_files import load_problems
from ragen.env.registry import make_env
from ragen.env.search.config import SearchConfig
from ragen.env.search.env import OWN_QUESTIONS, Search
from ragen.env.search.http_retriever import HttpRetriever, RetrievalError
from ragen.env.search.passages import OWN_CORPUS, bm25_retriever
from ragen.env.search.scoring import answer_reward, exact_match, f1, normalise
from ragen.env.text_index import TextIndex


@pytest.mark.parametrize(
    ("answer", "same"),
    [("The  Eiffel-Tower!", "eiffeltower"), ("an Apple a day", "apple day"), ("U.S.", "us"), ("", ""), ("the", "")],
)
def test_normalised_as_squad_does(answer, same):
    assert normalise(answer) == same


@pytest.mark.parametrize(
    ("answer", "gold", "reward"),
    [
        ("Port Merrow", ["Port Merrow"], 1),
        ("the port merrow.", ["Port Merrow"], 1),
        ("Merrow", ["Harrowick", "merrow"], 1),
        ("Merrow", ["Port Merrow"], 2 / 3),  # precision 1, recall 1/2
        ("it is Port Merrow town", ["Port Merrow"], 4 / 7),  # precision 2/5, recall 1
        ("a b c port d e f g h i", ["Port Merrow"], 0),  # precision 1/9, recall 1/2: F1 2/11 < 0.3
        ("port port", ["Port Merrow"], 0.5),  # a word counts as often as both have it
        ("Harrowick", ["Port Merrow"], 0),
        ("the", ["a"], 1),  # nothing is left of either
        ("the", ["Port Merrow"], 0),
    ],
)
def test_rewards_by_hand(answer, gold, reward):
    assert answer_reward(answer, gold) == pytest.approx(reward)
    assert exact_match(answer, gold) == (reward == 1)


def test_f1_pays_from_its_least_value_on():
    # one of 3 words and one of 3: F1 1/3; one of 4 and one of 3: F1 2/7
    assert answer_reward("x b c", ["b d e"]) == pytest.approx(1 / 3)
    assert f1("x b c f", ["b d e"]) == pytest.approx(2 / 7) and answer_reward("x b c f", ["b d e"]) == 0
    assert answer_reward("x b c f", ["b d e"], min_f1=0.25) == pytest.approx(2 / 7)


@settings(deadline=None)
@given(st.text(max_size=60), st.lists(st.text(max_size=60), min_size=1, max_size=3))
def test_scores_are_scores(answer, gold):
    score = f1(answer, gold)
    assert 0 <= score <= 1
    assert exact_match(answer, gold) <= (score == 1)
    assert answer_reward(answer, gold) in (0.0, score, 1.0)
    assert answer_reward(gold[0], gold) == 1


def started(question="What is the capital of the island of Ostrin?", **config):
    """An environment whose question is that one."""
    env = Search(SearchConfig(**config))
    rows = load_problems(str(OWN_QUESTIONS))
    for seed in range(len(rows)):
        env.reset(seed)
        if env.question == question:
            return env
    raise AssertionError("no such question")


def test_an_episode_by_hand():
    env = started()
    page, reward, terminated, truncated, info = env.step("search[capital Ostrin]")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"action_is_valid": True, "action_is_effective": True, "success": False}
    lines = page.splitlines()
    assert lines[:2] == ["Question: What is the capital of the island of Ostrin?", "Found for: capital Ostrin"]
    assert lines[2].startswith("[1] Harrowick: Harrowick is the capital of Ostrin.") and len(lines) == 7
    assert not env.step("search[capital  Ostrin]")[4]["action_is_effective"]  # the page stays as it is
    assert env.step("search[zzz qqq]")[0].endswith("Nothing was found for: zzz qqq")
    page, reward, terminated, truncated, info = env.step(" FINISH [ the Harrowick. ] ")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert page.endswith("You answered: the Harrowick.")
    with pytest.raises(RuntimeError, match="call reset first"):
        env.step("search[x]")


def test_a_wrong_answer_ends_it_without_pay():
    assert started().step("finish[Tessary]")[1:3] == (0.0, True)
    _, reward, terminated, _, info = started("On which island was the Grey Margravine built?").step(
        "finish[Velmora isle]"
    )
    assert reward == pytest.approx(2 / 3) and terminated and info["success"]


def test_the_limits_are_kept():
    env = started(max_steps=3, top_k=2, max_passage_chars=20)
    page = env.step("search[capital Ostrin]")[0]
    assert page.splitlines()[2] == "[1] Harrowick: Harrowick is the cap …" and len(page.splitlines()) == 4
    assert env.step("nonsense")[3] is False
    assert env.step("search[Ostrin]")[2:4] == (False, True)


@pytest.mark.parametrize(
    "action",
    ["", " ", "search", "search[]", "search[ ]", "finish[\n]", "find[x]", "search[x", "[x]", "search]x[", "\0",
     "search[" + "x" * 501 + "]", "search[" * 20_000, "x" * 100_000, "search[" + " " * 100_000 + "]", None, 7,
     ["search[x]"], "<|im_end|>", "</answer>"],
)  # fmt: skip
def test_absurd_actions_are_invalid_quick_and_change_nothing(action):
    env = started()
    start = time.process_time()
    page, reward, terminated, _, info = env.step(action)
    assert time.process_time() - start < 0.1
    assert (page, reward, terminated) == (f"Question: {env.question}", 0.0, False)
    assert info == {"action_is_valid": False, "action_is_effective": False, "success": False}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.text(max_size=80), max_size=4), st.sampled_from(["bm25", "mock"]))
def test_any_text_can_be_searched_and_random_play_keeps_the_rules(seed, texts, retriever):
    env = Search(SearchConfig(retriever=retriever))
    env.reset(seed)
    rng = np.random.default_rng(seed)
    for action in [*(f"search[{text}]" for text in texts), *(env.random_action(rng) for _ in range(10))]:
        page, reward, terminated, truncated, info = env.step(action)
        assert 0 <= reward <= 1 and info["success"] == (reward > 0) and (terminated or not reward)
        assert page.startswith(f"Question: {env.question}") and len(page) < 5_000
        if terminated or truncated:
            break


@pytest.mark.parametrize("retriever", ["bm25", "mock"])
def test_the_oracle_answers_all_and_has_mostly_read_it(retriever):
    env, read = Search(SearchConfig(retriever=retriever)), 0
    count = len(load_problems(str(OWN_QUESTIONS)))
    for seed in range(count):
        env.reset(seed)
        page = env.step(env.oracle_action())[0]
        read += any(answer in page for answer in env.answers)
        assert env.step(env.oracle_action())[1:3] == (1.0, True)
        assert env.oracle_action() is None
    assert read >= (0.8 if retriever == "bm25" else 1) * count


def test_the_random_player_does_worse_than_the_oracle_and_plays_by_the_rules():
    env, total = Search(), 0.0
    for seed in range(100):
        env.reset(seed)
        rng = np.random.default_rng(seed)
        ended = False
        while not ended:
            _, reward, terminated, truncated, info = env.step(env.random_action(rng))
            assert info["action_is_valid"]
            total, ended = total + reward, terminated or truncated
    assert 0 < total < 50


def test_a_question_is_answered_by_the_passages_that_it_names():
    passages = {json.loads(line)["id"]: line for line in OWN_CORPUS.read_text(encoding="utf-8").splitlines()}
    rows = load_problems(str(OWN_QUESTIONS))
    questions = [rows[n] for n in range(len(rows))]
    assert len({row["question"] for row in questions}) == len(questions) >= 200
    for row in questions:
        assert any(answer in passages[ident] for answer in row["answers"] for ident in row["support"]), row


def test_questions_and_corpus_of_files(tmp_path):
    questions, corpus = tmp_path / "questions.parquet", tmp_path / "corpus.jsonl"
    table = pyarrow.table({"question": ["Who built it?"], "golden_answers": [["Ada", "Ada B."]]})
    pyarrow.parquet.write_table(table, questions)
    corpus.write_text('{"id": 5, "contents": "\\"The tower\\"\\nAda built\\nthe tower."}\n{"text": "Nothing."}\n')
    env = make_env("search", {"questions": str(questions), "corpus": str(corpus)})
    env.reset(3)
    assert env.step("search[who built]")[0].endswith("\n[1] The tower: Ada built the tower.")
    assert env.step("finish[ada b]")[1] == 1.0
    copy = pickle.loads(pickle.dumps(env))
    assert len(pickle.dumps(env)) < 4_000 and copy.render() == env.render()  # the index stays outside


@pytest.mark.parametrize(
    ("rows", "corpus", "message"),
    [
        ('{"answer": "x"}', '{"text": "x"}', "has no 'question' in a row with answer"),
        ('{"question": "x", "answers": []}', '{"text": "x"}', "has no 'answers' or 'golden_answers' or 'answer'"),
        ('{"question": "x", "answer": "y"}', '{"title": "x"}', "passage 0 has neither text nor contents, only title"),
        ('{"question": "x", "answer": "y"}', "", "holds no problems"),
    ],
)
def test_files_that_do_not_fit_say_so(tmp_path, rows, corpus, message):
    paths = {"questions": tmp_path / "q.jsonl", "corpus": tmp_path / "c.jsonl"}
    paths["questions"].write_text(rows)
    paths["corpus"].write_text(corpus)
    with pytest.raises(ValueError, match=message):
        make_env("search", {key: str(path) for key, path in paths.items()}).reset(0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"retriever": "web"}, "retriever is 'web'; choose one of bm25, http, mock"),
        ({"retriever": "http"}, "base_url is None with retriever 'http'"),
        ({"base_url": "http://x"}, "base_url is 'http://x' with retriever 'bm25'"),
        ({"retriever": "http", "base_url": "localhost:1"}, "starts with http"),
        ({"retriever": "http", "base_url": "http://x", "corpus": "c.jsonl"}, "retriever: http does not read"),
        ({"min_f1": 0}, "min_f1 is 0"),
        ({"top_k": 0}, "top_k is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        make_env("search", config)


def test_the_index_is_built_once_whoever_asks():
    found = []
    threads = [threading.Thread(target=lambda: found.append(bm25_retriever(None))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(retriever) for retriever in found}) == 1


def test_an_index_ranks_and_breaks_ties_by_position():
    index = TextIndex(["red fish", "blue fish", "red fish red", "of the", "blue fish"])
    assert index.search("RED", 5) == [2, 0]
    assert index.search("blue", 5) == [1, 4] and index.search("blue", 1) == [1]
    assert index.search("the of green !", 5) == [] == TextIndex([]).search("x", 3) == TextIndex(["the"]).search("x", 3)


# --- a retrieval service ---------------------------------------------------------------------------------------------


@pytest.fixture
def service():
    """A service whose answers are scripted: (status, body, seconds of delay) each; the last one repeats.

    A body in parts is sent one part each 0.1 s.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            server.requests.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            status, body, delay = server.script[min(len(server.requests), len(server.script)) - 1]
            server.stop.wait(delay)
            self.send_response(status)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the client may have had enough
                for part in body if isinstance(body, list) else [body]:
                    self.wfile.write(part)
                    server.stop.wait(0.1 if isinstance(body, list) else 0)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.stop, server.url = [], threading.Event(), f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.stop.set()
    server.shutdown()
    thread.join()
    server.server_close()


FOUND = json.dumps(
    {"result": [[{"document": {"id": "9", "contents": "T\nA text."}, "score": 2}, {"title": "U", "text": "More."}, {}]]}
).encode()


def test_a_service_is_asked_and_its_passages_shown(service):
    service.script = [(200, FOUND, 0)]
    env = make_env("search", {"retriever": "http", "base_url": service.url + "/", "top_k": 2})
    env.reset(0)
    assert env.step("search[a thing]")[0].endswith("Found for: a thing\n[1] T: A text.\n[2] U: More.")
    assert service.requests == [("/retrieve", {"queries": ["a thing"], "topk": 2, "return_scores": True})]


def test_a_failure_that_passes_is_tried_again(service):
    service.script = [(503, b"", 0), (429, b"", 0), (200, FOUND, 0)]
    assert [p.title for p in HttpRetriever(service.url, tries=3).search("x", 2)] == ["T", "U"]
    assert len(service.requests) == 3


@pytest.mark.parametrize(
    ("answer", "requests", "message"),
    [
        ((500, b"", 0), 2, "failed 2 times, the last time: status 500"),
        ((404, b"", 0), 1, "answered with status 404"),
        ((200, b"<html>", 0), 1, "did not answer with JSON"),
        ((200, b'{"result": []}', 0), 1, "in another form"),
        ((200, b'{"result": [[3]]}', 0), 1, "in another form"),
        ((200, b'{"result": [[{"document": {"score": 1}}]]}', 0), 1, "neither text nor contents"),
        ((200, b" " * (9 * 2**20), 0), 1, "more than 8388608 bytes"),
    ],
)
def test_a_service_that_fails_is_named(service, answer, requests, message):
    service.script = [answer]
    with pytest.raises(RetrievalError, match=message) as failure:
        HttpRetriever(service.url, timeout_s=60, tries=2).search("x", 2)
    assert service.url in str(failure.value) and len(service.requests) == requests


@pytest.mark.parametrize(
    ("answer", "message"),
    [((200, FOUND, 90), "ReadTimeout"), ((200, [b" "] * 900, 0), "the answer took longer than 0.5 s|ReadTimeout")],
)
def test_a_service_that_hangs_or_dribbles_is_not_waited_for(service, answer, message):
    service.script = [answer]
    start = time.perf_counter()
    with pytest.raises(RetrievalError, match=f"failed 2 times, the last time: ({message})"):
        HttpRetriever(service.url, timeout_s=0.5, tries=2).search("x", 2)
    assert time.perf_counter() - start < 60  # 1 s on an idle machine


def test_no_service_at_all():
    with pytest.raises(RetrievalError, match="ConnectError"):
        HttpRetriever("http://127.0.0.1:9", tries=2).search("x", 2)
