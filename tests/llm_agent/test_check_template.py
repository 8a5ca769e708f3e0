"""The command that shows which tokens are trained: its output, its exit status."""

import json

import pytest

from ragen.llm_agent.check_template import main
from tests.llm_agent.test_template_shapes import CHATML, SYSTEM_DROPPED, TEXT, byte_level

#: A byte is a token here.
ROOMY = ("actor_rollout_ref.rollout.response_length=200", "actor_rollout_ref.rollout.max_model_len=4000")


@pytest.fixture
def folder(tmp_path):
    """Writes the tokenizer of a template into a model's folder, with the end tokens that generation stops at."""

    def write(template, *stops, **names):
        tokenizer = byte_level(template, **names)
        tokenizer.save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "eos_token_id": 0}))
        ids = tokenizer.convert_tokens_to_ids(list(stops))
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids} if stops else {}))
        return str(tmp_path)

    return write


def test_an_episode_is_shown_by_writer_and_turn(folder, capsys):
    assert main([folder(CHATML), *ROOMY, "agent_proxy.max_turn=2", "--policy", "random"]) == 0
    out = capsys.readouterr().out
    for line in (
        "   template │ <|im_start|>user⏎", "environment │ Actions: Left, Down, Right, Up⏎",
        "   template │ <|im_start|>assistant⏎", "    sampled │ <answer>", "└ turn 1 ends, reward ", "The right tokens",
    ):  # fmt: skip
        assert line in out
    assert "\x1b[" not in out


def test_json_holds_every_token_once_and_the_verdicts(folder, capsys):
    assert main([folder(CHATML), *ROOMY, "--json", "agent_proxy.enable_think=true"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["right"] and {check["status"] for check in record["checks"]} == {"ok"}
    spans = record["episode"]["spans"]
    text = "".join(span["text"] for span in spans)
    sampled = [span["text"] for span in spans if span["writer"] == "sampled"]
    assert all(t.startswith("<think></think><answer>") and t.endswith("</answer><|im_end|>") for t in sampled)
    assert len(sampled) == len(record["episode"]["turn_rewards"]) == text.count("<|im_start|>assistant\n")
    assert all("<|im" not in span["text"] for span in spans if span["writer"] == "environment")


def test_colours_on_a_terminal_unless_asked_not_to(folder, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    main([folder(CHATML)])
    assert "\x1b[1;32m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main([folder(CHATML)])
    assert "32m" not in capsys.readouterr().out


def test_a_template_under_which_training_would_be_wrong_exits_1(folder, capsys):
    assert main([folder(TEXT)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "end_of_turn wrong" in out and "A training would be wrong." in out
    assert main([folder(TEXT), "agent_proxy.stop=['</answer>']"]) == 0


def test_the_prompt_is_the_configs(folder):
    assert main([folder(SYSTEM_DROPPED), "agent_proxy.system_prompt=Be brief"]) == 1
    assert main([folder(SYSTEM_DROPPED)]) == 0  # quickstart has none


def test_end_tokens_come_from_the_models_files_too(folder):
    assert main([folder(CHATML, eos="<|endoftext|>")]) == 1
    assert main([folder(CHATML, "<|im_end|>", "<|endoftext|>", eos="<|endoftext|>")]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}", "agent_proxy.max_turns=3"], "no such key"),
        (["{}", "agent_proxy.parser=nope"], "agent_proxy.parser: 'nope' is not one of"),
        (["{}/none/of/it"], "no tokenizer can be loaded"),
    ],
)
def test_usage_exits_2(folder, capsys, words, message):
    where = folder(CHATML)
    assert main([word.format(where) for word in words]) == 2
    assert message in capsys.readouterr().err
