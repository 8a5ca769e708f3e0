"""Data for supervised fine-tuning gives the recorded tokens back exactly, or nothing."""

import dataclasses

import pyarrow.parquet as pq
import pytest

from ragen.eval import to_sft
from ragen.eval.records import Record, write_records
from ragen.eval.to_sft import ChatReader, SftError, keep, message_rows, prompt_response_rows, write_parquet
from tests.eval.played import play
from tests.llm_agent.tokenizers_for_tests import CHATML, byte_tokenizer

PREFILLED = CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>{% endif %}")
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
DEFAULT_SYSTEM = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe good.<|im_end|>\n{% endif %}" + CHATML
FORGETFUL = CHATML.replace(
    "{{ message['content'] }}<|im_end|>",
    "{% if loop.last or message['role'] != 'assistant' %}{{ message['content'] }}{% else %}"
    "{{ message['content'].split('</think>')[-1] }}{% endif %}<|im_end|>",
)


def records(trajectories):
    return [Record(line, t, step=2) for line, t in enumerate(trajectories, start=1)]


@pytest.mark.parametrize("template", [CHATML, PREFILLED, NO_SYSTEM, DEFAULT_SYSTEM])
def test_messages_rendered_again_are_the_recorded_tokens(template):
    tokenizer = byte_tokenizer(template)
    trajectories = play(tokenizer, groups=1)
    reader = ChatReader(tokenizer)
    for row, t in zip(message_rows(records(trajectories), reader), trajectories, strict=True):
        roles = [message["role"] for message in row["messages"]]
        opening = ["user"] if template is NO_SYSTEM else ["system", "user"]
        assert roles == opening[:-1] + ["user", "assistant"] * t.num_turns
        text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        last = int(t.turn_ends()[-1]) + 1
        assert ids[:last] == t.token_ids[:last].tolist()
        assert row["messages"][-1]["content"].startswith("<think>") and "|im" not in row["messages"][-1]["content"]


def test_a_reply_cut_by_its_limit_keeps_its_text(tokenizer):
    async def chatter(episode, rng):
        return ["Up " * 60 + "<"]

    (trajectory, *_) = play(tokenizer, script=chatter)
    (row,) = message_rows(records([trajectory]), ChatReader(tokenizer))
    replies = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
    assert replies == [turn.reply for turn in trajectory.turns] and len(replies[0]) == 128


def test_a_template_that_rewrites_history_is_refused_for_messages_alone():
    tokenizer = byte_tokenizer(FORGETFUL)
    trajectory = next(t for t in play(tokenizer) if t.num_turns > 1)
    thoughtful = records([trajectory])
    with pytest.raises(SftError, match="rewrite"):
        # an empty thought is cut from every earlier reply
        list(message_rows(thoughtful, ChatReader(tokenizer)))
    assert len(list(prompt_response_rows(thoughtful, ChatReader(tokenizer)))) == trajectory.num_turns


def test_a_base_models_replies_are_messages_where_they_begin_as_the_plain_template_has_it(tokenizer):
    base = byte_tokenizer(None)
    with pytest.raises(SftError, match="other tokens than were recorded"):  # "Assistant:Up", never "Assistant: Up"
        list(message_rows(records(play(base, groups=1)), ChatReader(base)))
    spaced = CHATML.replace("{{ message['content'] }}", "{{ ' ' + message['content'] }}")
    reader = ChatReader(byte_tokenizer(spaced.replace("assistant\n", "assistant\n")))
    assert reader._pieces.sampled_opening == " "


def test_another_tokenizer_is_refused(played):
    with pytest.raises(SftError, match="is it the right tokenizer"):
        list(message_rows(records(played), ChatReader(byte_tokenizer(None))))


def test_prompt_and_response_are_the_recorded_tokens(tokenizer, played):
    rows = list(prompt_response_rows(records(played), ChatReader(tokenizer)))
    assert len(rows) == sum(t.num_turns for t in played)
    t, last = played[0], rows[played[0].num_turns - 1]
    assert last["turn"] == t.num_turns - 1 and last["response"] == t.turns[-1].reply
    ids = tokenizer(last["prompt"] + last["response"], add_special_tokens=False)["input_ids"]
    assert ids == t.token_ids[: int(t.turn_ends()[-1]) + 1].tolist()


@pytest.mark.parametrize("mode", ["limited_multi_turn", "single_turn"])
def test_a_prompt_is_what_the_policy_read_for_that_turn(mode, tokenizer):
    trajectories = play(tokenizer, groups=1, skill=0.1, context_window_mode=mode, max_context_window=1)
    rows = iter(prompt_response_rows(records(trajectories), ChatReader(tokenizer)))
    for t in trajectories:
        for start, reply, end in zip(t.context_starts, t.reply_starts(), t.turn_ends(), strict=True):
            row = next(rows)
            ids = [tokenizer(row[part], add_special_tokens=False)["input_ids"] for part in ("prompt", "response")]
            assert ids == [t.token_ids[start:reply].tolist(), t.token_ids[reply : end + 1].tolist()]
    several = next(t for t in trajectories if t.context_starts.any())
    with pytest.raises(SftError, match="more than one context"):
        list(message_rows(records([several]), ChatReader(tokenizer)))


def test_filters(played):
    made = records(played)
    best = max(t.episode_return for t in played)
    assert all(r.trajectory.metrics["success"] for r in made if keep(successful=True)(r))
    assert {r.trajectory.episode_return for r in made if keep(min_return=best)(r)} == {best}
    failed = dataclasses.replace(played[0], status="failed")
    assert not keep()(Record(1, failed))


@pytest.mark.parametrize("batch", [3, 1000])
def test_parquet_holds_every_row(played, tokenizer, tmp_path, batch):
    rows = list(message_rows(records(played), ChatReader(tokenizer)))
    rows[0] = {**rows[0], "step": None}
    assert write_parquet(tmp_path / "out.parquet", rows, batch=batch) == len(played)
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.to_pylist() == rows
    assert [path.name for path in tmp_path.iterdir()] == ["out.parquet"]


def test_the_command(played, tokenizer, tmp_path, capsys):
    write_records(tmp_path / "a.jsonl", played, step=1)
    tokenizer.save_pretrained(tmp_path / "tok")
    command = [str(tmp_path / "a.jsonl"), str(tmp_path / "out.parquet"), "--tokenizer", str(tmp_path / "tok")]
    assert to_sft.main([*command, "--successful"]) == 0
    solved = sum(t.metrics["success"] > 0 for t in played)
    assert f"{solved} rows (messages) from {solved} of 8 episodes" in capsys.readouterr().out
    assert to_sft.main([*command, "--form", "prompt_response"]) == 0
    assert {"prompt", "response", "turn", "return"} <= set(pq.read_table(tmp_path / "out.parquet").column_names)
    capsys.readouterr()
    assert to_sft.main([*command, "--min-return", "1000"]) == 2
    assert "no episode passes the filter" in capsys.readouterr().err
    assert to_sft.main(command[:2]) == 2
    assert "--tokenizer" in capsys.readouterr().err


def test_the_tokenizer_of_a_run_is_found(played, tokenizer, tmp_path):
    from ragen.eval.run_tokenizer import find_tokenizer

    file = tmp_path / "rollouts" / "1.jsonl"
    write_records(file, played)
    assert find_tokenizer(file) is None
    (tmp_path / "config.yaml").write_text("model_path: some/model\n")
    assert find_tokenizer(file) == "some/model"
    saved = tmp_path / "checkpoints" / "global_step_2" / "actor" / "huggingface"
    tokenizer.save_pretrained(saved)
    assert find_tokenizer(file) == find_tokenizer(tmp_path) == str(saved)
