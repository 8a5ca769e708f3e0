"""The table of keys that nothing reads, held against the installed veRL."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from ragen.config.compose import schema
from ragen.config.inert import INERT

#: Parts of veRL that a run never enters: other engines, other trainers, the declarations of the configs themselves.
OFF_PATH = (
    "trainer/config/", "workers/config/", "trainer/main_ppo_v0.py", "trainer/ppo/ray_trainer.py", "trainer/main_eval",
    "trainer/main_generation", "trainer/sft_trainer", "trainer/fsdp_sft", "experimental/fully_async",
    "experimental/one_step_off", "experimental/separation",
    "experimental/vla", "experimental/transfer_queue", "experimental/teacher_loop",
    "experimental/dynamic_dataset", "trainer/distillation", "workers/engine/megatron", "workers/engine/mindspeed",
    "workers/engine/veomni", "workers/engine/torchtitan", "workers/engine/automodel", "workers/rollout/sglang",
    "workers/rollout/trtllm", "workers/rollout/hf_rollout", "workers/rollout/naive", "models/mcore", "utils/megatron",
    "model_merger/", "third_party/", "utils/npu",
)  # fmt: skip


@cache
def sources() -> dict[str, str]:
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    texts = {}
    for file in root.rglob("*.py"):
        name = file.relative_to(root).as_posix()
        if not name.startswith(OFF_PATH):
            lines = file.read_text(encoding="utf-8", errors="ignore").splitlines()
            texts[name] = "\n".join(line.partition("#")[0] for line in lines)
    return texts


@pytest.mark.parametrize("key", INERT)
def test_key_exists_and_nothing_reads_it(key: str):
    inert = INERT[key]
    assert key in schema()
    pattern = re.compile(inert.pattern or rf"(?<![A-Za-z0-9_]){re.escape(key.rpartition('.')[2])}(?![A-Za-z0-9_])")

    readers = [name for name, text in sources().items() if not name.startswith(inert.readers) and pattern.search(text)]

    assert readers == []


@pytest.mark.parametrize("key", [key for key, inert in INERT.items() if inert.instead and " " not in inert.instead])
def test_what_to_set_instead_exists(key: str):
    instead = INERT[key].instead.removesuffix(".*")

    assert any(name == instead or name.startswith(instead + ".") for name in schema())
