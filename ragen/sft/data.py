"""Where the rows of a warm start come from: scripted episodes, recorded ones, or a parquet of the user's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from ragen.config.errors import ConfigError, Fault
from ragen.config.to_verl import resolve_n_groups, resolve_seed
from ragen.env.registry import load_specs
from ragen.eval.records import Record, RecordError, holds_records, read_records
from ragen.eval.run_tokenizer import TokenizerNotFound, load_tokenizer
from ragen.eval.to_sft import ChatReader, SftError, keep
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.es_manager import EnvStateManager, EpisodeTask, Split
from ragen.llm_agent.policy import ScriptedPolicy, oracle_actions
from ragen.llm_agent.trajectory import Trajectory
from ragen.sft.rows import ChatEncoder, Row, RowError, episode_rows, fitting, is_tokenized_by
from ragen.trainer.settings import composed_context_config

__all__ = ["columns_of", "make_rows", "record_files", "scripted_episodes", "split_rows", "write_rows"]

_PATH = "sft.data.path"
#: Episodes that the script plays at once.
_AT_ONCE = 256


def make_rows(cfg: DictConfig, tokenizer: Any) -> tuple[list[Row], str]:
    """The rows that `sft.data` asks for, none longer than `max_model_len`, and a line that says what they are.

    Raises:
        ConfigError: the data cannot be read, or nothing of it can be learned.
    """
    path = cfg.sft.data.path
    if path is None:
        rows, told = _scripted_rows(cfg, tokenizer)
    elif str(path).endswith(".parquet"):
        rows, told = _parquet_rows(cfg, tokenizer, Path(path).expanduser())
    else:
        rows, told = _recorded_rows(cfg, tokenizer, Path(path).expanduser())
    limit = int(cfg.actor_rollout_ref.rollout.max_model_len)
    fit = list(fitting(rows, limit))
    if len(fit) < len(rows):
        told += f", {len(rows) - len(fit)} longer than max_model_len={limit} left out"
    if not fit:
        fix = "raise sft.data.episodes, or set sft.data.successful=false" if path is None else "see sft.data.*"
        raise ConfigError([Fault(_PATH, path, f"nothing to learn from: {told}", fix)])
    return fit, told


def scripted_episodes(cfg: DictConfig, ctx: ContextManager) -> list[Trajectory]:
    """`sft.data.episodes` episodes of the oracle, played through the agent proxy under the config's own limits."""
    node, data = cfg.es_manager.train, cfg.sft.data
    tags, given = list(node.env_configs.tags), node.env_configs.n_groups
    counts = resolve_n_groups(node.env_groups, tags, None if given is None else list(given))
    split = Split(node.env_groups, 1, tuple(tags), tuple(counts))
    tasks = [EpisodeTask(split.tag_of_row(row), row, 0, data.seed + row) for row in range(data.episodes)]
    es = EnvStateManager(
        load_specs(cfg.custom_envs),
        split,
        run_seed=resolve_seed(cfg.seed)["run"],
        base_seed=0,  # unused: each task says its own seed
        format_penalty=cfg.es_manager.format_penalty,
    )
    proxy = LLMAgentProxy(
        es, ctx, ScriptedPolicy(oracle_actions, ctx), episode_timeout_s=cfg.agent_proxy.episode_timeout_s
    )
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(task: EpisodeTask, bar: tqdm) -> Trajectory:
        async with slots:
            played = await proxy.run_episode(task)
        bar.update()
        return played

    async def play() -> list[Trajectory]:
        with tqdm(total=len(tasks), desc="scripted episodes", unit="ep", dynamic_ncols=True) as bar:
            return list(await asyncio.gather(*(one(task, bar) for task in tasks)))

    try:
        return asyncio.run(play())
    finally:
        es.close()


def record_files(path: Path) -> list[Path]:
    """The files of episodes that `path` names: itself, or those below a folder."""
    if path.is_file():
        return [path]
    return sorted(file for pattern in ("*.jsonl", "*.jsonl.gz") for file in path.rglob(pattern) if holds_records(file))


def columns_of(path: Path) -> set[str]:
    """The columns of a parquet. Raises OSError or ValueError where it is none."""
    import pyarrow.parquet as pq

    return set(pq.read_schema(path).names)


def split_rows(rows: list[Row], holdout: int) -> tuple[list[Row], list[Row]]:
    """Rows to train on, and `holdout` others, drawn evenly from all."""
    order = np.random.default_rng(0).permutation(len(rows))
    held = set(order[:holdout].tolist())
    return [row for i, row in enumerate(rows) if i not in held], [rows[i] for i in sorted(held)]


def write_rows(path: Path, rows: list[Row]) -> None:
    """A parquet with the columns input_ids and loss_mask, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(
        {
            "input_ids": pa.array([row.input_ids for row in rows], type=pa.list_(pa.int64())),
            "loss_mask": pa.array([row.loss_mask.astype(np.int8) for row in rows], type=pa.list_(pa.int8())),
        }
    )
    partial = path.with_name(f".{path.name}.partial")
    pq.write_table(table, partial)
    partial.replace(path)


def _scripted_rows(cfg: DictConfig, tokenizer: Any) -> tuple[list[Row], str]:
    played = scripted_episodes(cfg, ContextManager(tokenizer, composed_context_config(cfg)))
    chosen = _wanted(cfg)
    wanted = [t for number, t in enumerate(played, start=1) if chosen(Record(number, t, None))]
    return [row for t in wanted for row in episode_rows(t)], f"{len(wanted)} of {len(played)} scripted episodes"


def _wanted(cfg: DictConfig) -> Callable[[Record], bool]:
    data = cfg.sft.data
    return keep(min_return=data.min_return, successful=data.successful)


def _recorded_rows(cfg: DictConfig, tokenizer: Any, path: Path) -> tuple[list[Row], str]:
    """Of the model's own tokens where the episodes were played with its tokenizer, else of their messages."""
    encoder = ChatEncoder(tokenizer, OmegaConf.to_container(cfg.agent_proxy.chat_template_kwargs, resolve=True))
    rows: list[Row] = []
    seen = kept = 0
    wanted = _wanted(cfg)
    readers: dict[Path, ChatReader] = {}
    try:
        for file in record_files(path):
            for record in read_records(file):
                seen += 1
                if not wanted(record):
                    continue
                kept += 1
                t = record.trajectory
                if is_tokenized_by(t, tokenizer):
                    rows += episode_rows(t)
                    continue
                if file not in readers:
                    readers[file] = ChatReader(load_tokenizer(None, file))
                rows += encoder.rows(readers[file].messages(t))
    except (RecordError, SftError, RowError, TokenizerNotFound) as error:
        raise ConfigError([Fault(_PATH, path, str(error))]) from error
    return rows, f"{kept} of {seen} recorded episodes"


def _parquet_rows(cfg: DictConfig, tokenizer: Any, path: Path) -> tuple[list[Row], str]:
    import pyarrow.parquet as pq

    encoder = ChatEncoder(tokenizer, OmegaConf.to_container(cfg.agent_proxy.chat_template_kwargs, resolve=True))
    table = pq.read_table(path)
    chats = "messages" in table.column_names
    examples = table.select(["messages"] if chats else ["prompt", "response"]).to_pylist()
    rows: list[Row] = []
    for number, example in enumerate(tqdm(examples, desc="examples", unit="row", dynamic_ncols=True)):
        try:
            if chats:
                rows += encoder.rows(example["messages"])
            else:
                rows += _pair_rows(encoder, example["prompt"], example["response"], cfg.sft.data.rendered)
        except (RowError, TypeError, KeyError) as error:
            raise ConfigError([Fault(_PATH, path, f"row {number}: {error}")]) from error
    return rows, f"{len(examples)} examples of {path.name}"


def _pair_rows(encoder: ChatEncoder, prompt: Any, response: str, rendered: bool) -> Iterator[Row]:
    if rendered:
        yield encoder.rendered(prompt, response)
        return
    if isinstance(prompt, str):
        if encoder.asks(prompt):
            raise RowError("its prompt holds the template's control tokens already; set sft.data.rendered=true")
        prompt = [{"role": "user", "content": prompt}]
    yield from encoder.rows([*prompt, {"role": "assistant", "content": response}])
