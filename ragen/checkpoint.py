"""Where a training checkpoint keeps its policy: read without torch, by whatever takes a `model_path`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["actor_folder"]


def actor_folder(path: str | Path) -> Path | None:
    """The folder of a checkpoint's sharded policy; None: `path` is no checkpoint of a training.

    Args:
        path: `<run>/checkpoints/global_step_<n>` or `…/best`, or the `actor` folder within.
    """
    path = Path(path).expanduser()
    found = (folder for folder in (path, path / "actor") if (folder / "fsdp_config.json").is_file())
    return next(found, None)
