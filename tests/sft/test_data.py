"""Rows of a warm start from each of its sources."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from ragen.config.errors import ConfigError
from ragen.eval.records import write_records
from ragen.sft.data import make_rows, split_rows
from ragen.sft.rows import Row, episode_rows
from ragen.sft.settings import load_config
from tests.eval.played import play
from tests.llm_agent.tokenizers_for_tests import byte_tokenizer

TOKENIZER = byte_tokenizer()
LONG = "actor_rollout_ref.rollout.max_num_batched_tokens=8192"


@functools.lru_cache(maxsize=1)
def settings():
    # the test's tokenizer has no token above a byte
    return load_config("sft", ["sft.batch_size=8", "actor_rollout_ref.rollout.max_model_len=8192", LONG])


def rows(**values):
    cfg = copy.deepcopy(settings())
    for key, value in values.items():
        OmegaConf.update(cfg, key.replace("__", "."), value)
    return make_rows(cfg, TOKENIZER)


def test_scripted_episodes_are_solved_and_shared_by_the_tags():
    made, told = rows(
        sft__data__episodes=8,
        es_manager__train__env_configs__tags=["FrozenLake", "SimpleSokoban"],
        custom_envs__FrozenLake__env_config__success_rate=1.0,
        actor_rollout_ref__rollout__response_length=128,
    )
    texts = [TOKENIZER.decode(row.input_ids.tolist()) for row in made]
    assert told.endswith("of 8 scripted episodes") and len(made) > 4
    assert {"ice" in text for text in texts} == {True, False}


def test_recorded_episodes_are_filtered_and_keep_their_tokens(tmp_path):
    played = play(TOKENIZER)
    write_records(tmp_path / "a" / "1.jsonl", played)
    solved = [t for t in played if t.metrics["success"]]
    assert 0 < len(solved) < len(played)
    made, told = rows(sft__data__path=str(tmp_path))
    assert told == f"{len(solved)} of {len(played)} recorded episodes"
    assert [row.input_ids.tolist() for row in made] == [episode_rows(t)[0].input_ids.tolist() for t in solved]
    best = max(t.episode_return for t in played)
    wanted = sum(t.episode_return == best and t.metrics["success"] > 0 for t in played)
    assert len(rows(sft__data__path=str(tmp_path), sft__data__min_return=best)[0]) == wanted
    with pytest.raises(ConfigError, match="nothing to learn from: 0 of 8 recorded episodes"):
        rows(sft__data__path=str(tmp_path), sft__data__min_return=1000)


def test_a_parquet_of_pairs_or_of_chats_gives_the_same_rows(tmp_path):
    chat = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}]
    pq.write_table(pa.table({"prompt": ["1 + 1"], "response": ["2"]}), tmp_path / "pairs.parquet")
    pq.write_table(pa.Table.from_pylist([{"messages": chat}]), tmp_path / "chats.parquet")
    (pair,), _ = rows(sft__data__path=str(tmp_path / "pairs.parquet"))
    (whole,), _ = rows(sft__data__path=str(tmp_path / "chats.parquet"))
    assert pair.input_ids.tolist() == whole.input_ids.tolist()
    assert TOKENIZER.decode(pair.input_ids[pair.loss_mask].tolist()) == "2<|im_end|>"


def test_a_prompt_with_control_tokens_is_not_rendered_twice(tmp_path):
    prompt = "<|im_start|>user\n1 + 1<|im_end|>\n<|im_start|>assistant\n"
    pq.write_table(pa.table({"prompt": [prompt], "response": ["2<|im_end|>"]}), tmp_path / "p.parquet")
    with pytest.raises(ConfigError, match="row 0: .* set sft.data.rendered=true"):
        rows(sft__data__path=str(tmp_path / "p.parquet"))
    ((row,), _) = rows(sft__data__path=str(tmp_path / "p.parquet"), sft__data__rendered=True)
    assert TOKENIZER.decode(row.input_ids.tolist()) == prompt + "2<|im_end|>"


def test_held_out_rows_are_never_trained_on():
    made = [Row(np.array([k]), np.array([False])) for k in range(20)]
    taught, held = split_rows(made, 5)
    assert len(held) == 5 and sorted(int(r.input_ids[0]) for r in taught + held) == list(range(20))
