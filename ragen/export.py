"""From a training checkpoint to a Hugging Face folder: `python -m ragen.export CHECKPOINT OUT [--merge-lora]`.

The folder holds weights, config, tokenizer and chat template; transformers and vLLM load it, and so does `model_path`.
Shards are put together by veRL's model merger, in the precision that they were trained in.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from ragen.checkpoint import actor_folder
from ragen.tiny_model import cache_root

__all__ = ["ExportError", "cached_export", "export"]

#: Where veRL's merger and `export` put adapters that are not merged.
ADAPTER = "lora_adapter"


class ExportError(ValueError):
    """Nothing could be exported; the message says why and what to do."""


def export(checkpoint: str | Path, out: str | Path, *, merge_lora: bool = False) -> Path:
    """Write the checkpoint's policy to `out`, in one rename.

    Args:
        checkpoint: `<run>/checkpoints/global_step_<n>`, `…/best`, or the `actor` folder within.
        out: a folder that does not exist yet, or is empty.
        merge_lora: add trained adapters to the weights. Otherwise `out` holds the model that was started from, and the
            adapters in `out/lora_adapter`, as peft loads them.

    Returns:
        `out`, absolute.

    Raises:
        ExportError: no checkpoint there, shards are missing, or `out` holds something already.
    """
    source, out = actor_folder(checkpoint), Path(out).expanduser().resolve()
    if source is None:
        raise ExportError(f"{checkpoint}: no checkpoint of a policy; give <run>/checkpoints/global_step_<n>")
    if not list(source.glob("model_world_size_*_rank_0.pt")):
        raise ExportError(
            f"{source}: its weights are gone; trainer.max_actor_ckpt_to_keep says how many checkpoints keep theirs"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out}: exists already; name another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        made = Path(scratch) / "model"
        _merge_shards(source, made)
        if merge_lora and (made / ADAPTER).is_dir():
            merged = Path(scratch) / "merged"
            _merge_adapter(made, merged)
            made = merged
        made.rename(out)
    return out


def cached_export(checkpoint: str | Path) -> Path:
    """The checkpoint's policy as a Hugging Face folder in the cache, adapters merged; exported on first use.

    Raises:
        ExportError: as `export`.
    """
    source = actor_folder(checkpoint)
    if source is None:
        raise ExportError(f"{checkpoint}: no checkpoint of a policy")
    source = source.resolve()
    files = [
        f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in sorted(source.glob("model_*.pt"))
    ]
    name = hashlib.sha256("\n".join([str(source), *files]).encode()).hexdigest()[:10]
    folder = cache_root() / f"exported-{name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        return folder if folder.is_dir() else export(source, folder, merge_lora=True)


def _merge_shards(source: Path, target: Path) -> None:
    import torch
    from torch.distributed.tensor import DTensor
    from transformers import AutoConfig
    from verl.model_merger.base_model_merger import ModelMergerConfig
    from verl.model_merger.fsdp_model_merger import FSDPModelMerger, merge_non_dtensor_shards

    class ExactMerger(FSDPModelMerger):
        """veRL's own casts every tensor to bfloat16, and so exports another policy than was trained in float32."""

        def _load_and_merge_state_dicts(self, world_size, total_shards, mesh_shape, mesh_dim_names):
            files = [source / f"model_world_size_{world_size}_rank_{rank}.pt" for rank in range(total_shards)]
            if missing := [file.name for file in files if not file.is_file()]:
                raise ExportError(f"{source}: shards are missing: {', '.join(missing)}")
            shards = [torch.load(file, map_location="cpu", weights_only=False) for file in files]
            return {key: self._merge(key, [shard[key] for shard in shards]) for key in sorted(shards[0])}

        def _merge(self, key, parts):
            if not isinstance(parts[0], DTensor):
                return merge_non_dtensor_shards(key, parts)
            placement = parts[0].placements[-1]  # replicas of the same shards come before it
            return self._merge_by_placement([part.to_local() for part in parts], placement)

        def save_hf_model_and_tokenizer(self, state_dict):
            dtype = max(state_dict.values(), key=torch.numel).dtype
            super().save_hf_model_and_tokenizer(state_dict)
            config = AutoConfig.from_pretrained(target)
            config.dtype = dtype  # else a loader would cast the weights
            config.save_pretrained(target)

    files = source / "huggingface"
    config = ModelMergerConfig("merge", "fsdp", str(target), local_dir=str(source), hf_model_config_path=str(files))
    target.mkdir()
    ExactMerger(config).merge_and_save()


def _merge_adapter(folder: Path, target: Path) -> None:
    """W + alpha / r · B A for every adapted matrix (Hu et al. 2021, equation 3)."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    PeftModel.from_pretrained(model, folder / ADAPTER).merge_and_unload().save_pretrained(target)
    AutoTokenizer.from_pretrained(folder).save_pretrained(target)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ragen.export", description=__doc__)
    parser.add_argument("checkpoint", help="<run>/checkpoints/global_step_<n>, or …/best")
    parser.add_argument("out", help="folder to write; must not exist yet")
    parser.add_argument("--merge-lora", action="store_true", help="add trained adapters to the weights")
    options = parser.parse_args(arguments)
    try:
        print(export(options.checkpoint, options.out, merge_lora=options.merge_lora))
    except ExportError as error:
        print(f"ragen.export: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
