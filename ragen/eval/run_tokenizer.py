"""Finds the tokenizer of a file of episodes: in its run's checkpoints, else by the run's `model_path`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ragen.eval.api_models import API
from ragen.llm_agent.byte_chat import byte_tokenizer

__all__ = ["TokenizerNotFound", "find_tokenizer", "load_tokenizer"]


class TokenizerNotFound(ValueError):
    """No tokenizer could be loaded; the message says where it was looked for."""


def find_tokenizer(path: Path) -> str | None:
    """Folder or name of the tokenizer of the run that `path` (a file or folder) belongs to; None: none is near.

    Looks in the folder itself and two above for a checkpoint's `huggingface` folder, then for `config.yaml` and its
    `model_path`.
    """
    path = path.resolve()
    folders = [path, *path.parents][:3] if path.is_dir() else list(path.parents)[:3]
    for folder in folders:
        saved = sorted(folder.glob("checkpoints/*/actor/huggingface/tokenizer.json"))
        if saved:
            return str(saved[-1].parent)
    for folder in folders:
        config = folder / "config.yaml"
        if config.is_file():
            model = OmegaConf.load(config).get("model_path")
            if model:
                return str(model)
    return None


def load_tokenizer(name: str | None, path: Path) -> Any:
    """The Hugging Face tokenizer `name` (a folder, a name, `tiny`, or `api:…`), else the one found near `path`.

    Raises:
        TokenizerNotFound: nothing was named or found, or it cannot be loaded.
    """
    chosen = name or find_tokenizer(path)
    if chosen is None:
        raise TokenizerNotFound(f"{path}: no checkpoint and no config.yaml near; name the model with --tokenizer")
    if chosen == "tiny":
        from ragen.tiny_model import Recipe, make_tokenizer

        return make_tokenizer(Recipe())
    if chosen.startswith(API):
        return byte_tokenizer()
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(str(Path(chosen).expanduser()) if chosen.startswith("~") else chosen)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TokenizerNotFound(
            f"tokenizer {chosen!r} cannot be loaded: {reason}; name one with --tokenizer"
        ) from error
