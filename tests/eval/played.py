"""Episodes of real environments, played by a script, for the tests of everything that reads records."""

import asyncio
import dataclasses

from omegaconf import OmegaConf

from ragen.config.compose import CONFIG_DIR
from ragen.env.registry import load_specs
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.ctx_manager import ContextConfig, ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, Split
from ragen.llm_agent.policy import ScriptedPolicy, mixed_actions

CONTEXT = ContextConfig(max_model_len=8192, response_length=128, max_turn=6, max_actions_per_turn=2)


def specs():
    """The environments that come with the project."""
    return load_specs(OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / "envs.yaml"))["custom_envs"])


def play(tokenizer, tags=("SimpleSokoban", "FrozenLake"), groups=2, group_size=2, skill=0.6, script=None, **context):
    """Trajectories of `groups` groups of each tag; `context`: changes of `CONTEXT`."""
    split = Split(groups * len(tags), group_size, tuple(tags), (groups,) * len(tags))
    es = EnvStateManager(specs(), split, run_seed=5, base_seed=100, format_penalty=-0.1)
    ctx = ContextManager(tokenizer, dataclasses.replace(CONTEXT, **context))
    proxy = LLMAgentProxy(es, ctx, ScriptedPolicy(script or mixed_actions(skill), ctx))
    try:
        return asyncio.run(proxy.rollout())
    finally:
        es.close()


def write_run_config(folder):
    """A `config.yaml` as a run leaves it, with what a replay reads."""
    node = {
        "custom_envs": OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / "envs.yaml"))["custom_envs"],
        "es_manager": {"format_penalty": -0.1},
        "agent_proxy": {"max_turn": CONTEXT.max_turn, "max_actions_per_turn": CONTEXT.max_actions_per_turn},
        "actor_rollout_ref": {
            "rollout": {"max_model_len": CONTEXT.max_model_len, "response_length": CONTEXT.response_length}
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(node)))
