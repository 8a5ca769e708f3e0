"""docs/rewards_and_tools.md: its files work as pasted, its commands name configs and keys that exist."""

import asyncio
import re
import shlex
from pathlib import Path

import pytest

from ragen.config.checks import check
from ragen.config.compose import load
from ragen.env.registry import load_specs
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, Split
from ragen.llm_agent.policy import SCRIPTS, ScriptedPolicy
from ragen.rewards import RewardFunction
from ragen.trainer.settings import composed_context_config
from tests.llm_agent.tokenizers_for_tests import byte_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "rewards_and_tools.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture
def pasted(page, tmp_path, monkeypatch):
    """A folder with every file of the page, as the working folder and on the path."""
    for name, text in re.findall(r"^```\w+ (\S+)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_every_command_is_sound(page, pasted):
    blocks = re.findall(r"^```bash\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    lines = [line.split("  #")[0] for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    checked = 0
    for words in map(shlex.split, lines):
        if "--config-name" not in words:
            continue
        overrides = [word for word in words[words.index("--config-name") + 2 :] if "=" in word]
        folder = pasted if "--config-dir" in words else None
        cfg = load(words[words.index("--config-name") + 1], overrides, folder)
        assert [str(fault) for fault in check(cfg)] == []
        checked += 1
    assert checked == 4


def test_the_tools_of_the_page_are_played(pasted):
    cfg = load("tools", [], pasted)
    specs = load_specs({"HigherLower": cfg.custom_envs.HigherLower})
    es = EnvStateManager(specs, Split(3, 1, ("HigherLower",), (3,)), run_seed=1, base_seed=5)
    ctx = ContextManager(byte_tokenizer(), composed_context_config(cfg))
    reward = RewardFunction("my_rewards.py", "short_thoughts", kwargs={"most": 5})
    try:
        for script, solved in (("oracle", {1.0}), ("random", {0.0, 1.0})):
            played = asyncio.run(LLMAgentProxy(es, ctx, ScriptedPolicy(SCRIPTS[script], ctx), reward=reward).rollout())
            assert all(t.usable and t.metrics["action_is_valid"] == 1.0 for t in played)
            assert {t.metrics["success"] for t in played} <= solved
            assert all(t.metrics["custom_reward"] == pytest.approx(-0.1 * t.num_turns) for t in played)
    finally:
        es.close()
