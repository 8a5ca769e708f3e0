"""A checkpoint's policy as a Hugging Face folder: exactly the weights that were trained, adapters merged on request."""

import json

import pytest

from ragen.checkpoint import actor_folder
from ragen.config import load
from ragen.config.checks import check
from ragen.config.to_verl import resolve_model_path
from ragen.export import ExportError, cached_export, export, main

IDS = [[5, 9, 2, 7, 1]]


def small_model():
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return Qwen3ForCausalLM(
        Qwen3Config(vocab_size=321, head_dim=8, num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    )


def save_checkpoint(folder, state, config):
    """As veRL's checkpoint manager leaves a policy of one process."""
    import torch

    from ragen.tiny_model import Recipe, make_tokenizer

    actor = folder / "actor"
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(actor / "huggingface")
    make_tokenizer(Recipe()).save_pretrained(actor / "huggingface")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 1}))
    torch.save(state, actor / "model_world_size_1_rank_0.pt")
    return folder


@pytest.fixture
def checkpoint(tmp_path):
    model = small_model()
    return save_checkpoint(tmp_path / "global_step_3", model.state_dict(), model.config)


def logits(folder):
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype="auto")(torch.tensor(IDS)).logits


def test_the_exported_policy_is_the_trained_one_to_the_last_bit(checkpoint, tmp_path):
    import torch
    from transformers import AutoTokenizer

    out = export(checkpoint, tmp_path / "out")
    with torch.no_grad():
        wanted = small_model()(torch.tensor(IDS)).logits
    assert wanted.dtype == torch.float32 and torch.equal(logits(out), wanted)
    ours = AutoTokenizer.from_pretrained(checkpoint / "actor" / "huggingface")
    assert AutoTokenizer.from_pretrained(out).chat_template == ours.chat_template is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_3", "out"]  # no scraps


@pytest.fixture
def lora_checkpoint(tmp_path):
    """A checkpoint with adapters that matter, and the logits of its policy."""
    import torch
    from peft import LoraConfig, get_peft_model

    model = small_model()
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
        wanted = adapted(torch.tensor(IDS)).logits
    folder = save_checkpoint(tmp_path / "global_step_7", adapted.state_dict(), model.config)
    meta = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}
    (folder / "actor" / "lora_train_meta.json").write_text(json.dumps(meta))
    return folder, wanted


def test_adapters_are_merged_or_kept_beside_the_model_they_belong_to(lora_checkpoint, tmp_path):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder, wanted = lora_checkpoint
    merged, apart = export(folder, tmp_path / "merged", merge_lora=True), export(folder, tmp_path / "apart")
    with torch.no_grad():
        plain = small_model()(torch.tensor(IDS)).logits
        model = AutoModelForCausalLM.from_pretrained(apart, dtype="auto")
        both = PeftModel.from_pretrained(model, apart / "lora_adapter")(torch.tensor(IDS)).logits
    assert (plain - wanted).abs().max() > 1e-2  # they do matter
    assert torch.equal(logits(apart), plain)
    torch.testing.assert_close(both, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(merged), wanted, atol=1e-5, rtol=1e-5)
    assert not (merged / "lora_adapter").exists()


def test_a_checkpoint_is_a_model_path(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path / "cache"))
    cfg = load("quickstart", [f"model_path={checkpoint}"])
    assert check(cfg) == []
    folder = resolve_model_path(str(checkpoint))
    assert folder == str(cached_export(checkpoint / "actor"))  # the same, once
    assert [path.name for path in (tmp_path / "cache").glob("exported-*") if path.is_dir()] == [folder.split("/")[-1]]


def test_another_state_of_a_checkpoint_is_another_model(checkpoint, tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path / "cache"))
    before = cached_export(checkpoint)
    model = small_model()
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    save_checkpoint(checkpoint, model.state_dict(), model.config)
    assert cached_export(checkpoint) != before


def test_what_cannot_be_exported_is_said(checkpoint, tmp_path, capsys):
    with pytest.raises(ExportError, match="no checkpoint of a policy; give <run>/checkpoints/global_step_<n>"):
        export(tmp_path, tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    assert main([str(checkpoint), str(tmp_path / "full")]) == 2
    assert "exists already; name another folder" in capsys.readouterr().err
    (checkpoint / "actor" / "model_world_size_1_rank_0.pt").unlink()
    with pytest.raises(ExportError, match="its weights are gone; trainer.max_actor_ckpt_to_keep"):
        export(checkpoint, tmp_path / "out")
    assert actor_folder(checkpoint) == checkpoint / "actor" and not (tmp_path / "out").exists()
