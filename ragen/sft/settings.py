"""What a warm start is told: its config composed and checked, in seconds, before anything is played or loaded."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from ragen.config import checks
from ragen.config.compose import CONFIG_DIR, compose, leaves
from ragen.config.errors import ConfigError, Fault, nearest
from ragen.config.to_verl import resolve_seed
from ragen.sft.data import columns_of, record_files

__all__ = ["load_config"]

#: Key → least value, and whether it must be whole.
_NUMBERS: dict[str, tuple[float, bool]] = {
    "sft.data.episodes": (1, True),
    "sft.data.seed": (0, True),
    "sft.epochs": (1, True),
    "sft.batch_size": (1, True),
    "sft.holdout_batches": (0, True),
    "sft.test_freq": (-1, True),
    "sft.save_freq": (-1, True),
    "sft.optim.lr": (0, False),
    "sft.optim.lr_warmup_steps_ratio": (0, False),
    "sft.optim.min_lr_ratio": (0, False),
}
_SCHEDULES = ("constant", "cosine")


def load_config(config_name: str, overrides: Sequence[str] = (), config_dir: str | None = None) -> DictConfig:
    """A checked config: a training's, with the node `sft` beside it.

    Raises:
        ConfigError: every fault that was found.
    """
    settings = OmegaConf.load(CONFIG_DIR / "supervised" / "settings.yaml")
    cfg, faults = compose(config_name, overrides, config_dir, beside=settings)
    if cfg is None:
        raise ConfigError(faults)
    own = OmegaConf.masked_copy(cfg, [key for key in cfg if key != "sft"])
    faults += [fault for fault in checks.check(own, checks.SUPERVISED_CHECKS) if fault not in faults]
    faults += list(_unknown(cfg, settings))
    numbers = list(_numbers(cfg))
    faults += numbers
    if not numbers:
        faults += [*_batches(cfg), *_data(cfg)]
    if faults:
        raise ConfigError(faults)
    return cfg


def _unknown(cfg: DictConfig, settings: DictConfig) -> Iterator[Fault]:
    """Keys below `sft` that a YAML file added."""
    known = dict(leaves(settings))
    for key, value in leaves(cfg):
        if key.startswith("sft") and key not in known:
            close = nearest(key, known)
            yield Fault(key, value, "no such key", f"did you mean {close}?" if close else "see docs/sft.md")


def _numbers(cfg: DictConfig) -> Iterator[Fault]:
    for key, (least, whole) in _NUMBERS.items():
        value = OmegaConf.select(cfg, key)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            yield Fault(key, value, "a whole number is wanted" if whole else "a number is wanted")
        elif value < least:
            yield Fault(key, value, "too small", f"the least is {least:g}")
        elif key.endswith("_freq") and value == 0:
            yield Fault(key, 0, "steps between two cannot be 0", "-1 turns it off")
        elif key.endswith("_ratio") and value > 1:
            yield Fault(key, value, "a share is wanted", "at most 1")
    node = cfg.sft
    for key in ("data.successful", "data.rendered"):
        value = OmegaConf.select(node, key)
        if not isinstance(value, bool):
            yield Fault(f"sft.{key}", value, "true or false is wanted")
    least = node.data.min_return
    if least is not None and (isinstance(least, bool) or not isinstance(least, (int, float))):
        yield Fault("sft.data.min_return", least, "a number is wanted", "or null")
    if node.optim.lr_scheduler_type not in _SCHEDULES:
        yield Fault(
            "sft.optim.lr_scheduler_type", node.optim.lr_scheduler_type, "unknown", f"known: {', '.join(_SCHEDULES)}"
        )
    if cfg.trainer.nnodes != 1:
        yield Fault("trainer.nnodes", cfg.trainer.nnodes, "a warm start runs on one machine", "set it to 1")


def _batches(cfg: DictConfig) -> Iterator[Fault]:
    size, devices = cfg.sft.batch_size, cfg.trainer.n_gpus_per_node
    if size % (cfg.micro_batch_size_per_gpu * devices):
        share = cfg.micro_batch_size_per_gpu * devices
        yield Fault("sft.batch_size", size, f"does not divide by micro_batch_size_per_gpu x devices = {share}",
                    f"try {max(share, round(size / share) * share)}")  # fmt: skip
    if cfg.sft.data.path is None and cfg.sft.data.episodes < size * (1 + cfg.sft.holdout_batches):
        yield Fault("sft.data.episodes", cfg.sft.data.episodes, "less than one batch beside those held out",
                    f"at least {size * (1 + cfg.sft.holdout_batches)}, or lower sft.batch_size")  # fmt: skip


def _data(cfg: DictConfig) -> Iterator[Fault]:
    data, key = cfg.sft.data, "sft.data.path"
    if data.path is None:
        yield from _scripted(cfg)
        return
    path = Path(str(data.path)).expanduser()
    if not path.exists():
        yield Fault(key, data.path, "no such file or folder", "give a rollouts.jsonl, a folder of them, or a .parquet")
    elif path.suffix == ".parquet":
        yield from _parquet(cfg, path)
    elif not record_files(path):
        yield Fault(key, data.path, "no file of episodes in this folder", "give a folder with *.jsonl")
    elif data.rendered:
        yield Fault("sft.data.rendered", True, "read only with a parquet", "leave it false")


def _parquet(cfg: DictConfig, path: Path) -> Iterator[Fault]:
    data = cfg.sft.data
    if importlib.util.find_spec("pyarrow") is None:
        yield Fault("sft.data.path", data.path, "pyarrow is not installed", "pip install pyarrow")
        return
    try:
        columns = columns_of(path)
    except (OSError, ValueError) as error:
        yield Fault("sft.data.path", data.path, f"no parquet: {str(error).splitlines()[0]}")
        return
    if "messages" not in columns and not {"prompt", "response"} <= columns:
        yield Fault("sft.data.path", data.path, f"has the columns {', '.join(sorted(columns))}",
                    "name one messages, or two prompt and response")  # fmt: skip
    if data.rendered and "messages" in columns:
        yield Fault("sft.data.rendered", True, "messages are rendered here", "set it to false")
    if data.min_return is not None:
        yield Fault("sft.data.min_return", data.min_return, "not read with a parquet", "filter its rows yourself")


def _scripted(cfg: DictConfig) -> Iterator[Fault]:
    data, seed, val = cfg.sft.data, resolve_seed(cfg.seed), cfg.es_manager.val
    judged = val.env_groups * cfg.trainer.validation_steps
    if data.seed < seed["val"] + judged and seed["val"] < data.seed + data.episodes:
        yield Fault("sft.data.seed", data.seed, "the script would play levels of the validation panel",
                    f"try {seed['val'] + judged}")  # fmt: skip
    if data.rendered:
        yield Fault("sft.data.rendered", True, "read only with a parquet", "leave it false")
