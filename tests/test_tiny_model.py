"""The tiny model: its tokenizer, its token format, its cache and a build in small."""

from __future__ import annotations

import dataclasses
import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen import tiny_model
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.policy import Sampling

#: A build of seconds.
SMALL = tiny_model.Recipe(
    episodes=16,
    turn_batches=2,
    episode_batches=2,
    turns_per_batch=8,
    episodes_per_batch=4,
    hidden_size=64,
    layers=1,
    heads=2,
    intermediate_size=64,
)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_model.make_tokenizer(tiny_model.Recipe())


@pytest.fixture(scope="module")
def ctx(tokenizer):
    return ContextManager(tokenizer, tiny_model._settings()[1])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    tiny_model.build(SMALL, folder, progress=False)
    return folder


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=80))
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(ids_of(tokenizer, text), skip_special_tokens=False) == text


@settings(max_examples=100, deadline=None)
@given(board=st.text(alphabet="#_OXPSG\n", min_size=1, max_size=60))
def test_each_board_symbol_is_one_token_wherever_it_stands(tokenizer, board):
    assert [tokenizer.decode([i]) for i in ids_of(tokenizer, board)] == list(board)


@pytest.mark.parametrize(
    "word", ["Up", "Down", "Left", "Right", " Up", "<think>", "</think>", "<answer>", "</answer>", "||"]
)
def test_actions_and_tags_are_single_ordinary_tokens(tokenizer, word):
    ids = ids_of(tokenizer, word)
    assert len(ids) == 1
    assert tokenizer.decode(ids, skip_special_tokens=True) == word


def test_special_tokens(tokenizer):
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        (only,) = ids_of(tokenizer, token)
        assert tokenizer.decode([only], skip_special_tokens=True) == ""
        assert only >= len(tokenizer) - 3


def test_the_prompts_need_no_bytes(tokenizer):
    for text in tiny_model.sample_texts(tiny_model.Recipe()):
        pieces = [tokenizer.decode([i]) for i in ids_of(tokenizer, text)]
        assert "".join(pieces) == text  # a character cut into bytes would not decode token by token
        letters = [
            a for a, b in zip(pieces, pieces[1:], strict=False) if a.islower() and b.islower() and len(a) == len(b) == 1
        ]
        assert not letters


def test_a_longer_chat_begins_with_the_shorter_one(tokenizer):
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    texts = [tokenizer.apply_chat_template(chat[:n], tokenize=False) for n in (1, 2, 3)]
    assert texts[0] == "<|im_start|>user\na<|im_end|>\n"  # no system message of its own
    assert texts[1].startswith(texts[0]) and texts[2].startswith(texts[1])
    opened = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert opened == texts[0] + "<|im_start|>assistant\n" and texts[1].startswith(opened)


def test_a_reply_is_four_tokens_and_its_suffix_does_not_repeat_the_end(ctx, tokenizer):
    reply = ctx.reply_ids(["Up"])
    assert [tokenizer.decode([i]) for i in reply] == ["<answer>", "Up", "</answer>", "<|im_end|>"]
    text, parsed = ctx.parse(reply)
    assert parsed.well_formed and parsed.actions == ("Up",) and text == "<answer>Up</answer><|im_end|>"
    ended = ctx.suffix_ids(reply, "#P#", turn=1, reward=-0.1, actions_left=9, notes=())
    cut = ctx.suffix_ids(reply[:-1], "#P#", turn=1, reward=-0.1, actions_left=9, notes=())
    assert cut == [tokenizer.eos_token_id, *ended]
    assert tokenizer.decode(ended).startswith("\n<|im_start|>user\nReward: -0.1\nTurn 2 of ")


@pytest.mark.wide
def test_a_built_folder_loads_as_what_trainer_and_engine_expect(built, tokenizer):
    from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer, GenerationConfig

    loaded = AutoTokenizer.from_pretrained(built)
    text = tiny_model.sample_texts(SMALL)[0] + " Übung √ <think>"
    assert ids_of(loaded, text) == ids_of(tokenizer, text)
    assert loaded.decode(ids_of(loaded, text)) == text
    assert loaded.chat_template == tokenizer.chat_template
    model = AutoModelForCausalLM.from_pretrained(built)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.config.vocab_size == len(loaded) == model.get_input_embeddings().num_embeddings
    assert str(model.dtype) == "torch.float32"
    assert GenerationConfig.from_pretrained(built).eos_token_id == loaded.eos_token_id == model.config.eos_token_id
    critic = AutoModelForTokenClassification.from_pretrained(built, num_labels=1)
    assert critic.score.weight.shape == (1, SMALL.hidden_size)


@pytest.mark.wide
def test_the_build_is_a_function_of_its_seed(built, tmp_path):
    from safetensors.torch import load_file

    tiny_model.build(SMALL, tmp_path / "again", progress=False)
    tiny_model.build(dataclasses.replace(SMALL, seed=1), tmp_path / "other", progress=False)
    first, again, other = (load_file(f / "model.safetensors") for f in (built, tmp_path / "again", tmp_path / "other"))
    assert all((first[name] == again[name]).all() for name in first)
    assert any((first[name] != other[name]).any() for name in first)


@pytest.mark.wide
def test_the_build_leaves_the_global_generators_alone(tmp_path):
    import torch

    before = torch.get_rng_state()
    tiny_model.build(SMALL, tmp_path / "m", progress=False)
    assert (torch.get_rng_state() == before).all()


@pytest.fixture(scope="module")
def lessons(ctx):
    return tiny_model.scripted_play(dataclasses.replace(SMALL, episodes=4), ctx, tiny_model._settings()[0])


def test_exactly_the_policy_tokens_are_taught(lessons, tokenizer):
    ids, taught, targets = tiny_model._collate(lessons, len(tokenizer))
    row_of_target = 0
    for row, lesson in enumerate(lessons):
        at = np.flatnonzero(taught[row].numpy()) + 1  # the place that a target is for
        assert at.tolist() == np.flatnonzero(lesson.policy_mask).tolist()
        assert (ids[row, : len(lesson.token_ids) - 1].numpy() == lesson.token_ids[:-1]).all()
        for place in at.tolist():
            written, chances = lesson.token_ids[place], targets[row_of_target]
            if tokenizer.decode([written]) in ("Up", "Down", "Left", "Right"):
                assert sorted(round(float(c), 3) for c in chances[chances > 0]) == [0.15, 0.15, 0.15, 0.55]
            else:
                assert chances[written] == 1 and chances.sum() == 1
            row_of_target += 1
    assert row_of_target == len(targets)


def test_the_favoured_action_is_the_best_one(ctx, tokenizer):
    recipe = dataclasses.replace(SMALL, episodes=4, skill=1.0)
    for lesson in tiny_model.scripted_play(recipe, ctx, tiny_model._settings()[0]):
        for place, chances in lesson.chances.items():  # an oracle alone wrote: its draw is its best action
            assert chances[int(lesson.token_ids[place])] == 1.0


def test_the_turns_of_a_lesson_are_slices_of_it(lessons, tokenizer):
    for lesson in lessons:
        turns = lesson.turns()
        assert len(turns) == lesson.turn_ids[-1]
        pieces = [t.token_ids[t.policy_mask] for t in turns]
        assert all(tokenizer.decode(p).startswith("<answer>") and p[-1] == tokenizer.eos_token_id for p in pieces)
        assert [list(t.chances.values()) for t in turns] == [[c] for c in list(lesson.chances.values())[1:]]
        assert all(t.policy_mask[list(t.chances)].all() for t in turns)


@pytest.mark.wide
def test_check_measures_and_keeps_the_numbers(built):
    measured = tiny_model.check(built, SMALL, episodes=4)
    numbers = measured["FrozenLake"]
    assert numbers["episodes"] == 4
    assert 0 <= numbers["valid_replies"] <= 1 and 0 <= numbers["success"] <= 1
    kept = json.loads((built / tiny_model.CHECK_FILE).read_text())
    assert kept["check"] == measured and kept["recipe"]["episodes"] == SMALL.episodes


def test_a_reply_depends_on_its_own_seed_alone(built):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(built).eval()
    prompts = [list(range(10, 30)), list(range(40, 45)), list(range(7))]
    samplings = [Sampling(max_tokens=5, seed=s) for s in (1, 2, 3)]
    together = tiny_model.sample_batch(model, prompts, samplings, eos=0)
    alone = [tiny_model.sample_batch(model, [p], [s], eos=0)[0] for p, s in zip(prompts, samplings, strict=True)]
    assert [g.token_ids for g in together] == [g.token_ids for g in alone]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)
    assert all(len(g.token_ids) <= 5 for g in together)


def test_log_probs_are_those_of_a_forward_pass(built):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(built).eval()
    prompt = list(range(20, 40))
    (reply,) = tiny_model.sample_batch(model, [prompt], [Sampling(max_tokens=6, seed=5)], eos=0)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + reply.token_ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    expected = logits.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
    np.testing.assert_allclose(reply.log_probs, expected.numpy(), atol=1e-5)


@pytest.mark.wide
def test_two_callers_at_once_build_once(tmp_path, monkeypatch):
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path))
    builds, real = [], tiny_model.build

    def counting(recipe, folder, *, progress):
        builds.append(folder)
        real(recipe, folder, progress=progress)

    monkeypatch.setattr(tiny_model, "build", counting)
    small = SMALL
    found = []
    callers = [threading.Thread(target=lambda: found.append(tiny_model.path(small, progress=False))) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(builds) == 1 and found[0] == found[1] and found[0].parent == tmp_path
    tiny_model.path(small, progress=False)
    assert len(builds) == 1
    tiny_model.path(small, progress=False, force=True)
    assert len(builds) == 2
    leftovers = [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]
    assert not leftovers


def test_the_folder_name_follows_recipe_and_wording(monkeypatch):
    first = tiny_model._fingerprint(SMALL)
    assert first == tiny_model._fingerprint(SMALL)
    assert first != tiny_model._fingerprint(dataclasses.replace(SMALL, skill=0.6))
    monkeypatch.setattr(ContextManager, "_format_line", lambda self, left: "Say something else")
    assert first != tiny_model._fingerprint(SMALL)


def test_cache_root(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("RAGEN_CACHE", raising=False)
    assert tiny_model.cache_root() == tmp_path / "xdg" / "ragen"
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path / "own"))
    assert tiny_model.cache_root() == tmp_path / "own"
    monkeypatch.delenv("RAGEN_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tiny_model.cache_root() == tmp_path / ".cache" / "ragen"


def test_seeds_of_the_warm_start_stay_clear_of_training_and_validation():
    recipe = tiny_model.Recipe()
    with pytest.raises(ValueError, match="keep the check's seeds apart"):
        dataclasses.replace(recipe, episodes=9_000)
    taught = range(recipe.first_seed, recipe.first_seed + recipe.episodes)
    assert not set(taught) & set(range(recipe.check_seed, recipe.check_seed + 256))
    assert max(recipe.check_seed + 256, max(taught)) < 10_000 and min(taught) > 123 + 256
