"""A user's reward function: what it changes, what its failures cost, what is refused before a run."""

import asyncio
import logging
import time

import numpy as np
import pytest

from ragen.env.registry import load_specs
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.ctx_manager import ContextConfig, ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, Split
from ragen.llm_agent.policy import SCRIPTS, ScriptedPolicy
from ragen.rewards import RewardError, RewardFunction
from ragen.trainer.metrics import episode_metrics
from tests.llm_agent.tokenizers_for_tests import byte_tokenizer

TOKENIZER = byte_tokenizer()

FUNCTIONS = """
import asyncio, threading, time
import numpy as np

RELEASE = threading.Event()

async def one(trajectory): return 2
def plain(trajectory, *, scale=1.0): return scale * trajectory.num_turns
async def each(trajectory): return [10.0 * (k + 1) for k in range(trajectory.num_turns)]
def array(trajectory): return np.arange(trajectory.num_turns, dtype=np.float32)
async def raises(trajectory): raise KeyError("told to")
async def exits(trajectory): raise SystemExit(3)
async def hangs(trajectory): await asyncio.sleep(3600)
async def stubborn(trajectory):
    while True:
        try: await asyncio.sleep(3600)
        except asyncio.CancelledError: return 1.0
def blocks(trajectory): RELEASE.wait(30); return 1.0
def plain_raises(trajectory): raise RuntimeError("told to")
def plain_exits(trajectory): raise SystemExit
def coroutine(trajectory): return one(trajectory)
def nothing(trajectory): return None
def text(trajectory): return "1.5"
def nan(trajectory): return float("nan")
def huge(trajectory): return 1e39
def integer(trajectory): return 10 ** 400
def short(trajectory): return [1.0] * (trajectory.num_turns + 1)
def nested(trajectory): return [[1.0]] * trajectory.num_turns
def spoils(trajectory):
    trajectory.token_ids[:] = 0
    trajectory.turn_rewards[:] = 99
    trajectory.metrics.clear()
    return 1.0
def odd_members(trajectory):
    if trajectory.member % 2: raise RuntimeError("told to")
    return 1.0
class Made:
    def __init__(self, value): self.value = float(value)
    async def __call__(self, trajectory): return self.value
class PlainMade(Made):
    def __call__(self, trajectory): return self.value
def no_argument(): return 1.0
class Uncallable: pass
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("rewards") / "mine.py"
    file.write_text(FUNCTIONS)
    return str(file)


def episodes(reward, members=1, goal=3):
    """Episodes of `goal` turns whose environment pays -0.25, -0.25, 1.0."""
    entry = {
        "env_type": "tests.llm_agent.counting_env:CountingEnv",
        "env_config": {"goal_low": goal, "goal_high": goal},
    }
    es = EnvStateManager(load_specs({"Count": entry}), Split(1, members, ("Count",), (1,)), run_seed=1, base_seed=50)
    config = ContextConfig(
        max_model_len=2000, response_length=64, max_turn=6, max_actions_per_turn=1, enable_think=False
    )
    ctx = ContextManager(TOKENIZER, config)
    proxy = LLMAgentProxy(es, ctx, ScriptedPolicy(SCRIPTS["oracle"], ctx), reward=reward)
    try:
        return asyncio.run(proxy.rollout())
    finally:
        es.close()


@pytest.mark.parametrize(
    ("name", "kwargs", "mode", "expected"),
    [
        ("one", {}, "add", [-0.25, -0.25, 3.0]),
        ("one", {}, "replace", [0.0, 0.0, 2.0]),
        ("plain", {"scale": 0.5}, "add", [-0.25, -0.25, 2.5]),
        ("each", {}, "add", [9.75, 19.75, 31.0]),
        ("each", {}, "replace", [10.0, 20.0, 30.0]),
        ("array", {}, "replace", [0.0, 1.0, 2.0]),
        ("Made", {"value": 4}, "replace", [0.0, 0.0, 4.0]),
        ("PlainMade", {"value": 4}, "replace", [0.0, 0.0, 4.0]),
    ],
)
def test_what_it_returns_becomes_the_turns_rewards(path, name, kwargs, mode, expected):
    [t] = episodes(RewardFunction(path, name, kwargs=kwargs, mode=mode))
    assert t.turn_rewards.tolist() == pytest.approx(expected)
    assert t.episode_return == pytest.approx(sum(expected)) and t.usable
    assert t.metrics["env_return"] == pytest.approx(0.5)
    given = sum(expected) - (0.5 if mode == "add" else 0.0)
    assert t.metrics["custom_reward"] == pytest.approx(given)
    assert [turn.reward for turn in t.turns] == [-0.25, -0.25, 1.0]  # what the policy was shown
    assert t.validate() is t


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", "raised KeyError: 'told to'"),
        ("exits", "raised SystemExit"),
        ("hangs", "no answer within reward.timeout_s=0.2"),
        ("stubborn", "no answer within reward.timeout_s=0.2"),
        ("blocks", "no answer within reward.timeout_s=0.2"),
        ("plain_raises", "raised RuntimeError: told to"),
        ("plain_exits", "raised SystemExit"),
        ("coroutine", "declare it with `async def`"),
        ("nothing", "returned None; return a finite number, or a list of 3"),
        ("text", "returned '1.5'"),
        ("nan", "returned nan"),
        ("huge", "must be finite in 32-bit floats"),
        ("integer", "return a finite number"),
        ("short", "a list of 3, one for each turn"),
        ("nested", "a list of 3, one for each turn"),
    ],
)
def test_a_failure_costs_its_own_episode_and_says_why(path, name, words, caplog):
    with caplog.at_level(logging.WARNING):
        [t] = episodes(RewardFunction(path, name, timeout_s=0.2 if "no answer" in words else 20))
    assert (t.status, t.end_reason) == ("failed", "reward")
    [record] = [record.getMessage() for record in caplog.records if "episode failed" in record.getMessage()]
    assert "Count seed 50 member 0" in record and words in record
    assert episode_metrics([t], group_size=1) == {"episodes": 1.0, "failed": 1.0, "failed/reward": 1.0}
    with pytest.raises(ValueError, match="no training sample"):
        context_of_samples(t)


def context_of_samples(trajectory):
    config = ContextConfig(max_model_len=9, response_length=9, max_turn=1, max_actions_per_turn=1)
    return ContextManager(TOKENIZER, config).formulate(trajectory)


def test_other_episodes_go_on(path):
    played = episodes(RewardFunction(path, "odd_members"), members=4)
    assert [t.status for t in played] == ["finished", "failed"] * 2
    assert [t.turn_rewards[-1] for t in played] == [2.0, 1.0] * 2  # a failed one keeps its record as it was played
    metrics = episode_metrics(played, group_size=4)
    assert (metrics["failed/reward"], metrics["Count/return"], metrics["Count/custom_reward"]) == (2.0, 1.5, 1.0)


def test_the_function_cannot_change_what_is_trained(path):
    [before], [after] = episodes(None), episodes(RewardFunction(path, "spoils"))
    assert np.array_equal(before.token_ids, after.token_ids)
    assert after.turn_rewards.tolist() == [-0.25, -0.25, 2.0] and after.metrics["success"] == 1.0


def test_hanging_threads_are_given_up_after_a_while_and_recover(path, monkeypatch):
    import ragen.rewards.function as module

    monkeypatch.setattr(module, "MAX_LOST", 2)
    reward = RewardFunction(path, "blocks", timeout_s=0.2)
    [played] = episodes(None)
    release = reward._function.func.__globals__["RELEASE"]

    async def calls():
        said = []
        for _ in range(3):
            with pytest.raises(RewardError) as error:
                await reward.apply(played)
            said.append(str(error.value))
        release.set()
        deadline = time.monotonic() + 20
        while reward._lost and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        return said, await reward.apply(played)

    said, rewarded = asyncio.run(calls())
    assert ["no answer" in text for text in said] == [True, True, False]
    assert "2 earlier calls still run" in said[2]
    assert rewarded.metrics["custom_reward"] == 1.0


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("on", {}, "name: .* has no function 'on'; did you mean 'one'"),
        ("plain", {"scal": 1}, "kwargs: plain must take .*'scal'"),
        ("no_argument", {}, "kwargs: no_argument must take"),
        ("Made", {}, "kwargs: Made must take the keyword arguments"),
        ("Made", {"value": "x"}, "kwargs: Made cannot be built: ValueError"),
        ("Uncallable", {}, "name: an instance of Uncallable must be callable with one trajectory"),
        ("RELEASE", {}, "name: .* has no function 'RELEASE'"),
    ],
)
def test_what_cannot_be_called_is_refused(path, name, kwargs, words):
    with pytest.raises((ValueError, TypeError), match=words):
        RewardFunction(path, name, kwargs=kwargs)


def test_files_and_modules_that_cannot_be_loaded_are_refused(tmp_path):
    (tmp_path / "broken.py").write_text("def reward(:\n")
    (tmp_path / "stops.py").write_text("raise SystemExit\n")
    for path, words in (
        (tmp_path / "absent.py", "path: .* is no file"),
        (tmp_path / "broken.py", "path: .* cannot be loaded: SyntaxError"),
        (tmp_path / "stops.py", "path: .* cannot be loaded: SystemExit"),
        ("no_such_module", "path: no_such_module cannot be imported"),
    ):
        with pytest.raises(ValueError, match=words):
            RewardFunction(str(path), "reward")


def test_a_module_goes_by_its_name():
    [t] = episodes(RewardFunction("tests.rewards.sample_reward", "turns"))
    assert t.metrics["custom_reward"] == 3.0


def test_no_path_is_no_function():
    assert RewardFunction.from_config({"path": None}) is None
