"""What shapes a run's prompts, and a hash of it: two results with one hash were asked in the same words.

Covered are the settings of `agent_proxy` that reach a prompt, the chat template, the reply format as it is described,
and each tag's entry in envs.yaml. What an environment's code says of itself is not: the commit in a run's
`versions.json` tells that.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ragen.env.registry import EnvSpec
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.es_manager import NOTES

logger = logging.getLogger(__name__)

#: Settings of a context that change no word of a prompt.
_NO_WORDS = ("max_model_len", "response_length", "stop", "use_turn_scores", "enable_response_mask")
_ENTRY = ("env_type", "env_instruction", "env_config", "max_actions_per_traj")
#: In a run's folder: the settings and their hash.
PROMPTS_FILE = "prompts.json"


def prompt_settings(ctx: ContextManager, specs: Mapping[str, EnvSpec]) -> dict[str, Any]:
    """Everything that is hashed, JSON-ready. `specs`: tag → entry of the tags in use."""
    context = {name: value for name, value in dataclasses.asdict(ctx.config).items() if name not in _NO_WORDS}
    return {
        "context": context,
        "reply_format": [ctx.format.describe(ctx.config, limit) for limit in (1, 2)],
        "notes": NOTES,
        "chat_template": ctx.template,
        "environments": {tag: {key: getattr(spec, key) for key in _ENTRY} for tag, spec in sorted(specs.items())},
    }


def prompt_hash(settings: Mapping[str, Any]) -> str:
    """Ten hex digits of `prompt_settings`: the same in any process."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:10]


def record_prompts(run_dir: str | Path, settings: Mapping[str, Any]) -> str:
    """Write the settings and their hash into a run's folder; returns the hash. Says so where a resumed run differs."""
    path, digest = Path(run_dir) / PROMPTS_FILE, prompt_hash(settings)
    if path.is_file() and (before := json.loads(path.read_text(encoding="utf-8"))["prompt_hash"]) != digest:
        logger.warning("the prompts have changed since this run began (%s, now %s): see %s", before, digest, path)
    record = {"prompt_hash": digest, **settings}
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    return digest
