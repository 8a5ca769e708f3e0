"""Runs veRL's own SFT trainer on rows of tokens; every rank executes this file under torchrun.

veRL's chat dataset trains what the template writes after a reply as well (the newline after `<|im_end|>`), so it is
replaced, through veRL's door `data.custom_cls`, by one that reads ids and masks from a parquet. Everything else is
veRL's: engine, loss, loop, checkpoints.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from ragen.config.cli import wait_passing_signals
from ragen.config.compose import verl_config_dir
from ragen.config.to_verl import resolve_attention, resolve_seed

__all__ = ["TRAIN_ROWS", "VAL_ROWS", "train", "verl_config"]

TRAIN_ROWS, VAL_ROWS = "rows/train.parquet", "rows/val.parquet"
_CONFIG = "verl.yaml"


def verl_config(cfg: DictConfig, *, model: str, run_dir: Path, validates: bool) -> DictConfig:
    """The config of veRL's SFT trainer: model, engine and optimiser as the same config gives them to the actor.

    Args:
        cfg: a checked config with its node `sft`.
        model: the folder that is trained.
        run_dir: holds the rows; checkpoints go below it.
        validates: whether rows are held out.
    """
    with initialize_config_dir(config_dir=str(verl_config_dir()), version_base="1.3"):
        out = compose("sft_trainer_engine")
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=False)  # type: ignore[assignment]
    actor, own = plain["actor_rollout_ref"]["actor"], plain["sft"]
    attention = resolve_attention(plain["attn_implementation"], plain["trainer"]["device"])
    model_node = {**plain["actor_rollout_ref"]["model"], "path": model}
    model_node["override_config"] = {**model_node["override_config"], "attn_implementation": attention}
    seed = resolve_seed(plain["seed"])["run"]
    backends = plain["trainer"]["logger"]
    backends = [backends] if isinstance(backends, str) else list(backends or [])
    plain_out: dict[str, Any] = OmegaConf.to_container(out, resolve=False)  # type: ignore[assignment]
    plain_out["model"] = model_node
    plain_out["engine"] = {**actor["fsdp_config"], "strategy": actor["strategy"], "seed": seed}
    plain_out["optim"] = {**actor["optim"], **own["optim"]}
    plain_out["checkpoint"] |= {"save_contents": ["model", "optimizer", "extra"]}
    plain_out["data"] |= {
        "train_files": str(run_dir / TRAIN_ROWS),
        "val_files": str(run_dir / VAL_ROWS) if validates else None,
        "train_batch_size": own["batch_size"],
        "micro_batch_size_per_gpu": plain["micro_batch_size_per_gpu"],
        "use_dynamic_bsz": False,
        "custom_cls": {"path": "pkg://ragen.sft.dataset", "name": "TokenRows"},
        "num_workers": 0,
    }
    plain_out["trainer"] |= {
        "default_local_dir": str(run_dir / "checkpoints"),
        "project_name": plain["trainer"]["project_name"],
        "experiment_name": run_dir.name,
        "total_epochs": own["epochs"],
        "logger": [name for name in backends if name != "console"],  # the bar shows the loss
        "save_freq": own["save_freq"],
        "test_freq": own["test_freq"] if validates else -1,
        "max_ckpt_to_keep": 1,
        "device": plain["trainer"]["device"],
        "n_gpus_per_node": plain["trainer"]["n_gpus_per_node"],
    }
    return OmegaConf.create(plain_out)


def train(config: DictConfig, run_dir: Path) -> int:
    """Train as `config` (from `verl_config`) says, one process for each device; the exit status of torchrun.

    What veRL prints goes to `<run_dir>/log.txt`; the bar and errors to the terminal.
    """
    path = run_dir / _CONFIG
    path.write_text(OmegaConf.to_yaml(config), encoding="utf-8")
    ranks = config.trainer.n_gpus_per_node
    environment = {
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // ranks)),
        "VERL_LOGGING_LEVEL": "WARNING",
        "PYTHONWARNINGS": "ignore",  # one for each engine of veRL's that is not installed
        "TENSORBOARD_DIR": str(run_dir / "tensorboard"),
        "WANDB_DIR": str(run_dir),
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with (run_dir / "log.txt").open("a", encoding="utf-8") as log:
        child = subprocess.Popen(
            [*command, "-m", "ragen.sft.train", str(path)], stdout=log, env={**environment, **os.environ}
        )
        return 128 + signal.SIGTERM if wait_passing_signals(child) else child.returncode


class _StepLog:
    """Stands in for veRL's `Tracking`: a step's metrics, which veRL logs in two parts, as one line of metrics.jsonl."""

    def __init__(self, inner: Any, show: Any):
        self._inner, self._show = inner, show
        self._step = 0
        self._held: dict[str, Any] = {}

    def log(self, data: Mapping[str, Any], step: int) -> None:
        if step != self._step:
            self.flush()
        self._step = step
        self._held.update(data)
        self._show(self._held)

    def flush(self) -> None:
        if self._held:
            self._inner.log(self._held, self._step)
        self._held = {}


def _run(config: DictConfig, run_dir: Path) -> None:
    from tqdm import tqdm
    from verl.trainer import sft_trainer

    from ragen.trainer.run_logger import RunLogger

    logs: list[_StepLog] = []
    bars: list[tqdm] = []

    def bar(*args: Any, **settings: Any) -> tqdm:
        bars[:] = [tqdm(*args, dynamic_ncols=True, **settings)]
        return bars[0]

    def show(metrics: Mapping[str, Any]) -> None:
        shown = {key: f"{metrics[key]:.4f}" for key in ("train/loss", "val/loss") if key in metrics}
        bars[0].set_postfix(shown, refresh=False)

    def tracking(**settings: Any) -> _StepLog:
        last = trainer.resume_global_step
        logs.append(_StepLog(RunLogger(tracker(**settings), str(run_dir), last), show))
        return logs[0]

    # veRL's `fit` makes both by these names and offers no other door to them
    tracker = sft_trainer.Tracking
    sft_trainer.Tracking, sft_trainer.tqdm = tracking, bar
    from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

    initialize_global_process_group()
    trainer = sft_trainer.SFTTrainer(config=config)
    trainer.fit()
    for log in logs:
        log.flush()
    destroy_global_process_group()


if __name__ == "__main__":
    _run(OmegaConf.load(sys.argv[1]), Path(sys.argv[1]).parent)  # type: ignore[arg-type]
