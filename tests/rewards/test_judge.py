"""The judge against a local server: scores, failures, retries, and a key that is never shown."""

import asyncio
import logging

import pytest

from ragen.rewards import RewardFunction
from ragen.rewards.judge import Judge, read_score, transcript
from tests.rewards.judge_server import JudgeServer
from tests.rewards.test_function import episodes

pytest.importorskip("openai")


def judge(server, timeout_s=60, **kwargs):
    kwargs = {"base_url": server.base_url, "model": "m", "request_timeout_s": 20.0, **kwargs}
    return RewardFunction("ragen.rewards.judge", "Judge", kwargs=kwargs, timeout_s=timeout_s)


def test_scores_are_added_to_the_last_turn():
    with JudgeServer(fail_share=0) as server:
        [t] = episodes(judge(server, scale=2.0, task="Count up."))
    assert t.turn_rewards.tolist() == pytest.approx([-0.25, -0.25, 1.0 + 2 * 0.75])
    [request] = server.requests
    assert request["model"] == "m" and "Count up." in request["messages"][0]["content"]
    assert "<answer>Add</answer>" in request["messages"][1]["content"]


def test_a_fifth_of_the_calls_fails_and_is_counted():
    with JudgeServer(fail_share=0.2, seed=3) as server:
        played = episodes(judge(server, max_retries=0), members=40)
    failed = [t for t in played if not t.usable]
    assert {t.end_reason for t in failed} == {"reward"}
    assert server.calls == 40 and 3 <= len(failed) == server.failed <= 14
    assert all(t.metrics["custom_reward"] == 0.75 for t in played if t.usable)


def test_retries_are_bounded_and_help():
    with JudgeServer(fail_share=0.2, seed=3) as server:
        played = episodes(judge(server, max_retries=2), members=40)
    assert 40 < server.calls <= 40 * 3
    # what is no failure of the transport is not tried again: an answer without a score
    assert sum(not t.usable for t in played) < server.failed


def test_concurrency_is_limited():
    with JudgeServer(fail_share=0) as server:
        reward = judge(server, concurrency=3)
        seen = []
        instance = reward._function
        create = instance._client.chat.completions.create

        async def counted(**kwargs):
            seen.append(3 - instance._free._value)
            return await create(**kwargs)

        instance._client.chat.completions.create = counted
        played = episodes(reward, members=12)
    assert all(t.usable for t in played) and max(seen) <= 3


def test_the_key_comes_from_the_environment_and_is_never_logged(monkeypatch, caplog):
    monkeypatch.setenv("JUDGE_KEY", "sk-secret-123")
    with JudgeServer(status=401) as server, caplog.at_level(logging.DEBUG):
        [t] = episodes(judge(server, api_key_env="JUDGE_KEY"))
    assert server.requests[0]["authorization"] == "Bearer sk-secret-123"
    assert t.end_reason == "reward" and "sk-secret-123" not in caplog.text
    assert "***" in caplog.text


def test_a_key_that_is_not_set_is_found_before_the_run(monkeypatch):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with pytest.raises(ValueError, match="kwargs: Judge cannot be built: .*api_key_env=JUDGE_KEY"):
        RewardFunction("ragen.rewards.judge", "Judge", kwargs={
            "base_url": "http://localhost:1/v1", "model": "m", "api_key_env": "JUDGE_KEY",
        })  # fmt: skip


def test_a_server_that_is_not_there_fails_the_episode():
    judge_of_nothing = Judge(base_url="http://127.0.0.1:9/v1", model="m", max_retries=0, request_timeout_s=5)
    [t] = episodes(None)
    with pytest.raises(RuntimeError, match="gave no answer: APIConnectionError"):
        asyncio.run(judge_of_nothing(t))


@pytest.mark.parametrize(
    ("answer", "score"), [("<score>0</score> no: <score> .5 </score>", 0.5), ("<score>1</score>", 1)]
)
def test_the_last_score_counts(answer, score):
    assert read_score(answer) == score


@pytest.mark.parametrize(
    "answer", ["", "0.5", "<score>1.1</score>", "<score>-1</score>", "<score>nan</score>", "<score>"]
)
def test_an_answer_without_a_score_is_an_error(answer):
    with pytest.raises(ValueError, match="no <score> from 0 to 1"):
        read_score(answer)


def test_the_transcript_tells_turns_and_outcome():
    [t] = episodes(None)
    text = transcript(t)
    assert text.count("## Turn") == 3 and "Done: Add" in text and text.endswith("the task is solved: yes")
