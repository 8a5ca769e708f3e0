"""A supervised warm start: `python -m ragen.sft --config-name sft [key=value …]` (docs/sft.md).

Makes rows from scripted or recorded episodes or from a parquet, trains a model on them with veRL's SFT trainer, and
leaves `<run>/model`, a Hugging Face folder that `model_path` of a training or an evaluation takes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from ragen.config.compose import config_names
from ragen.config.errors import ConfigError, Fault
from ragen.config.run_dir import RunDir, open_run
from ragen.config.to_verl import resolve_model_path
from ragen.sft.data import make_rows, split_rows, write_rows
from ragen.sft.settings import load_config
from ragen.sft.train import TRAIN_ROWS, VAL_ROWS, train, verl_config

#: The result, below the run's folder.
MODEL = "model"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 2: a fault of the configuration or of the data."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="python -m ragen.sft",
        description="Train a model on scripted, recorded or written examples (docs/sft.md).",
        epilog=f"configs: {', '.join(config_names())}",
    )
    parser.add_argument("--config-name", "-cn", default="sft", help="sft, or any training config")
    parser.add_argument("--config-dir", "-cd", help="a folder of configs of your own")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="for example sft.data.path=rollouts.jsonl")
    options = parser.parse_intermixed_args(words)
    name = Path(options.config_name).stem
    try:
        cfg = load_config(options.config_name, options.overrides, options.config_dir)
        run = open_run(cfg, name if name == "sft" else f"sft-{name}", ["python", "-m", "ragen.sft", *words])
        try:
            return _run(cfg, run, name)
        finally:
            run.release()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(cfg: DictConfig, run: RunDir, name: str) -> int:
    from ragen.trainer.run_logger import mark_finished

    shown = run.path.relative_to(Path.cwd()) if run.path.is_relative_to(Path.cwd()) else run.path
    if run.status != "finished":
        if cfg.system.CUDA_VISIBLE_DEVICES is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(cfg.system.CUDA_VISIBLE_DEVICES)
        model = resolve_model_path(cfg.model_path)
        validates = cfg.sft.holdout_batches > 0
        _write_rows(cfg, run.path, model)
        status = train(verl_config(cfg, model=model, run_dir=run.path, validates=validates), run.path)
        if status:
            print(f"the training failed; what veRL printed is in {shown / 'log.txt'}", file=sys.stderr)
            return status
        _export(run.path)
        mark_finished(str(run.path), {"model": MODEL})
    folder = shown / MODEL
    print(f"{folder}: the model, its tokenizer and template; beside it metrics.jsonl, rows, config.yaml")
    print(f"next: python train.py --config-name {cfg.sft.train_with or name} model_path={folder}")
    return 0


def _write_rows(cfg: DictConfig, run_dir: Path, model: str) -> None:
    """Make the rows, unless a run that is continued has them."""
    if (run_dir / TRAIN_ROWS).is_file():
        return
    from transformers import AutoTokenizer

    rows, told = make_rows(cfg, AutoTokenizer.from_pretrained(model))
    size = cfg.sft.batch_size
    taught, held = split_rows(rows, size * cfg.sft.holdout_batches)
    if len(taught) < size:
        problem = f"{len(rows)} rows are less than one batch beside {cfg.sft.holdout_batches} held out ({told})"
        raise ConfigError([Fault("sft.batch_size", size, problem, "lower it, or give more data")])
    (run_dir / TRAIN_ROWS).parent.mkdir(exist_ok=True)
    if held:
        write_rows(run_dir / VAL_ROWS, held)
    write_rows(run_dir / TRAIN_ROWS, taught)
    tokens, of = sum(int(row.loss_mask.sum()) for row in rows), sum(len(row.input_ids) for row in rows)
    print(f"{told}: {len(taught)} rows and {len(held)} held out, {tokens} of {of} tokens are trained", flush=True)


def _export(run_dir: Path) -> None:
    from ragen.export import export

    (last,) = sorted((run_dir / "checkpoints").glob("global_step_*"), key=lambda f: int(f.name.rpartition("_")[2]))[-1:]
    with (run_dir / "log.txt").open("a", encoding="utf-8") as log, contextlib.redirect_stdout(log):
        export(last, run_dir / MODEL, merge_lora=True)


if __name__ == "__main__":
    raise SystemExit(main())
